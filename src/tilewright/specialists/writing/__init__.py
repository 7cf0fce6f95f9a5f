"""Writes kernels and their tasks from references over arrays, without a model.

    source → read (syntax tree) → form → kernels in one language → task file

`expression` describes the computation apart from any language. The forms are chains of element-wise operations, row
reductions, and the product of two matrices with an element-wise epilogue; all else raises `OutsideForms`.
"""
