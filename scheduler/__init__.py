"""The kube-scheduler extender: which node and which GPU a pod gets.
Decides from a snapshot, writes one Binding, keeps nothing that a restart could lose.
It never cuts, evicts or talks to a GPU.
"""
