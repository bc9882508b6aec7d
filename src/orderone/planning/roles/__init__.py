"""Roles of tensors: collect the evidence about every tensor, then resolve it by one ranking.

vocabulary   words in names of tensors, modules and configuration keys
evidence     one immutable record of what is known about a tensor
widths       which sizes of a model are widths
resolve      the ranking: override > trace > owning module > shape > name
"""
