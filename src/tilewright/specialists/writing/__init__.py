"""Writes kernels and their tasks from references over arrays, without a model.

    source → read (syntax tree) → form → kernels in one language → task file

`expression` describes the computation independently of the language. The forms are chains of element-wise operations,
row reductions, and the product of two matrices with an element-wise epilogue. All other computations raise
`OutsideForms`.
"""
