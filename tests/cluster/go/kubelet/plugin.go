package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Where a container finds its GPUs and the library that tells of them (nvml.c has the first one too).
const (
	gpusInside    = "/run/nvidia/gpus"
	libraryInside = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
)

// plugin offers one GPU for each folder of gpus, which is named as the GPU is; its file "health" says "ok" or
// what failed. A container sees the folders of its own GPUs and no others.
type plugin struct {
	api.UnimplementedDevicePluginServer
	gpus, library string
}

func servePlugin() int {
	flags := flag.NewFlagSet("gpu-device-plugin", flag.ExitOnError)
	gpus := flags.String("gpus", "", "folder with a folder for each GPU")
	library := flags.String("library", "", "the libnvidia-ml.so.1 that containers get")
	resource := flags.String("resource", "nvidia.com/gpu", "name of the resource")
	folder := flags.String("plugins", api.DevicePluginPath, "folder of the kubelet's socket")
	if err := flags.Parse(os.Args[1:]); err != nil {
		log.Println(err)
		return 2
	}
	if err := run(&plugin{gpus: *gpus, library: *library}, *folder, *resource); err != nil {
		log.Println(err)
		return 1
	}
	return 0
}

// run offers the GPUs to every kubelet that starts: each removes the sockets that it finds.
func run(offered *plugin, folder, resource string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(folder); err != nil {
		return err
	}
	kubelet := filepath.Join(folder, filepath.Base(api.KubeletSocket))
	if _, err := os.Stat(kubelet); err == nil {
		if err := offer(offered, folder, kubelet, resource); err != nil {
			return err
		}
	}
	for event := range watcher.Events {
		if event.Name == kubelet && event.Has(fsnotify.Create) {
			if err := offer(offered, folder, kubelet, resource); err != nil {
				return err
			}
		}
	}
	return nil
}

// offer serves the plugin on a socket of its own and tells the kubelet of it. A server that an earlier kubelet
// knew goes on without a socket, and ends with us.
func offer(offered *plugin, folder, kubelet, resource string) error {
	name := strings.NewReplacer("/", "-").Replace(resource) + ".sock"
	path := filepath.Join(folder, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, offered)
	go server.Serve(listener)
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: name, ResourceName: resource}
	_, err = api.NewRegistrationClient(connection).Register(context.Background(), request, grpc.WaitForReady(true))
	log.Printf("offered %s to the kubelet: %v", resource, err)
	return err
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch tells which GPUs there are and how they are, and again whenever that changes.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	folders, err := filepath.Glob(filepath.Join(p.gpus, "*"))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if err := watcher.Add(folder); err != nil {
			return err
		}
	}
	var told []string
	for {
		devices, now, err := look(folders)
		if err != nil {
			return err
		}
		if !slices.Equal(told, now) {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			told = now
			log.Printf("told the kubelet: %v", now)
		}
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			return err
		case <-stream.Context().Done():
			return nil
		}
	}
}

// look reads the health of each GPU, also as words to compare.
func look(folders []string) (devices []*api.Device, words []string, err error) {
	for _, folder := range folders {
		said, err := os.ReadFile(filepath.Join(folder, "health"))
		if err != nil {
			return nil, nil, err
		}
		device := &api.Device{ID: filepath.Base(folder), Health: api.Healthy}
		if strings.TrimSpace(string(said)) != "ok" {
			device.Health = api.Unhealthy
		}
		devices = append(devices, device)
		words = append(words, fmt.Sprintf("%s is %s", device.ID, device.Health))
	}
	return devices, words, nil
}

// Allocate gives containers what NVIDIA's container runtime would: the library, and the GPUs by their names.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, wanted := range request.ContainerRequests {
		visible := strings.Join(wanted.DevicesIds, ",")
		given := &api.ContainerAllocateResponse{
			Envs:   map[string]string{"NVIDIA_VISIBLE_DEVICES": visible, "CUDA_VISIBLE_DEVICES": visible},
			Mounts: []*api.Mount{{HostPath: p.library, ContainerPath: libraryInside, ReadOnly: true}},
		}
		for _, id := range wanted.DevicesIds {
			mount := &api.Mount{
				HostPath: filepath.Join(p.gpus, id), ContainerPath: filepath.Join(gpusInside, id), ReadOnly: true,
			}
			given.Mounts = append(given.Mounts, mount)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}
