"""halflap one level above Inductor's scheduler: orders and rewrites FX graphs.

The same in every compiler that works on FX graphs: a graph with functional collectives is handed
over as ``halflap.graph/1`` (`program`), ordered by the library, and its nodes are moved (`order`).
`merge` and `split` change the graph first, where the library says that it is worth it.
"""
