"""Kubernetes as Fallow sees it: names, facts on objects, a client, watches and caches.
The only room that talks to an API server.
It decides nothing about GPUs.
"""
