"""The load benchmark of a running portal, `make bench-web`: see bench_web.py."""
