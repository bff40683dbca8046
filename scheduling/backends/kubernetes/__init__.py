"""The Kubernetes backend: runs gangs as Jobs or as bare pods (pods without a Job), and watches the cluster."""
