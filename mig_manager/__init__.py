"""Re-cuts GPUs around running work: demand, packing, plan, and the steps on each node.
A slice in use is never touched.
It never binds a pod and never answers the kubelet.
"""
