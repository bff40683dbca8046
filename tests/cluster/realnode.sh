# The inside of a real node: run by realnode.py as the first process of namespaces of its own (pid, mount,
# network), with the node's folder and its address. All that it mounts, starts or sets up ends with it.
set -e
folder=$1 address=$2
cd "$folder"
# Kubernetes has these places by heart. What the kubelet mounts for pods, containerd must see: shared.
mount --make-rshared /
mount --bind kubelet /var/lib/kubelet
mount --bind log /var/log
mount -t tmpfs none /run/containerd
mount -t tmpfs none /var/lib/cni
mount -t tmpfs none containerd
# The kubelet changes these for the whole machine, unless it finds them as it wants them.
(cd sysctl && find . -type f) | while read -r name; do
	mount --bind "sysctl/$name" "/proc/sys/$name"
done
# Pods are on a bridge, which has one cable to the machine outside.
ip link set lo up
ip link add cni0 type bridge
ip address add "$address" dev cni0
ip link set cni0 up
unshare --mount --propagation slave sh -c 'mount -t proc proc /proc && exec containerd --config "$1"' \
	sh "$folder/containerd.toml" &
wait $!
