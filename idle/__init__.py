"""How much of each GPU is idle right now, measured, with source and age.
Old values count as busy.
It never acts on what it measures.
"""
