package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const zone = ".svc.cluster.local."

// names answers as the cluster's name server for headless services, SERVICE.NAMESPACE.svc.cluster.local, and for
// the pods behind them by their hostnames. Services with an address of their own would need kube-proxy.
type names struct {
	slices listers.EndpointSliceLister
}

func serveNames() int {
	flags := flag.NewFlagSet("cluster-dns", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "who asks the API server for endpoints")
	listen := flags.String("listen", "", "address and port, UDP")
	if err := flags.Parse(os.Args[1:]); err != nil {
		log.Println(err)
		return 2
	}
	if err := answerNames(*kubeconfig, *listen); err != nil {
		log.Println(err)
		return 1
	}
	return 0
}

func answerNames(kubeconfig, listen string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	known := names{slices: factory.Discovery().V1().EndpointSlices().Lister()}
	factory.Start(context.Background().Done())
	factory.WaitForCacheSync(context.Background().Done())
	socket, err := net.ListenPacket("udp", listen)
	if err != nil {
		return err
	}
	log.Printf("answering at %s", socket.LocalAddr())
	question := make([]byte, 4096)
	for {
		size, asker, err := socket.ReadFrom(question)
		if err != nil {
			return err
		}
		answer, err := known.answer(question[:size])
		if err != nil {
			log.Printf("not understood: %v", err)
			continue
		}
		if _, err := socket.WriteTo(answer, asker); err != nil {
			log.Println(err)
		}
	}
}

func (n names) answer(packet []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(packet)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	addresses, found, err := n.lookup(strings.ToLower(question.Name.String()))
	if err != nil {
		return nil, err
	}
	header.Response, header.Authoritative = true, true
	if !found {
		header.RCode = dnsmessage.RCodeNameError
	}
	message := dnsmessage.Message{Header: header, Questions: []dnsmessage.Question{question}}
	if question.Type == dnsmessage.TypeA {
		about := dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
		for _, address := range addresses {
			record := dnsmessage.Resource{Header: about, Body: &dnsmessage.AResource{A: address}}
			message.Answers = append(message.Answers, record)
		}
	}
	return message.Pack()
}

// lookup gives the addresses behind a name, and whether there is such a name.
func (n names) lookup(name string) (addresses [][4]byte, found bool, err error) {
	below, ours := strings.CutSuffix(name, zone)
	parts := strings.Split(below, ".")
	if !ours || len(parts) < 2 || len(parts) > 3 {
		return nil, false, nil
	}
	namespace, service, host := parts[len(parts)-1], parts[len(parts)-2], ""
	if len(parts) == 3 {
		host = parts[0]
	}
	headless := labels.Set{discovery.LabelServiceName: service, "service.kubernetes.io/headless": ""}
	slices, err := n.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(headless))
	if err != nil {
		return nil, false, err
	}
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
				continue
			}
			if host != "" && (endpoint.Hostname == nil || *endpoint.Hostname != host) {
				continue
			}
			for _, address := range endpoint.Addresses {
				if four := net.ParseIP(address).To4(); four != nil {
					addresses = append(addresses, [4]byte(four))
				}
			}
		}
	}
	return addresses, len(addresses) > 0, nil
}
