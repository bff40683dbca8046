"""The Kubernetes backend: runs gangs as Jobs or bare pods and watches the cluster."""
