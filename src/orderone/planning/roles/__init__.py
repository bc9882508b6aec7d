"""Roles of tensors: collect the evidence about every tensor, then resolve it by one ranking.

vocabulary   tables of words in names of tensors, modules and configuration keys
evidence     one immutable record of what is known about a tensor; which sizes are widths
resolve      the ranking: override > trace > owning module > shape > name
standalone   roles and groups in absolute mode, where no base shows what grows
"""
