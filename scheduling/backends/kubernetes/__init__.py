"""Gangs as Jobs of Kubernetes clusters. So far: speaking to an API server, and keeping up with it."""
