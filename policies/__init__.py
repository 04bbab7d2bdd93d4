"""What the operator wants: a checked model of the policy file and the last good version of it.
A broken edit never takes effect.
It knows nothing of nodes or pods that exist.
"""
