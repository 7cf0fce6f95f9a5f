"""Generates kernels and task files from reference functions over arrays. It uses fixed rules, not a language model.

    source → read (syntax tree) → form → kernels in one language → task file

`expression` describes the computation independently of the language. A form is a supported pattern of computation. The
forms are chains of element-wise operations, row reductions, and the product of two matrices with an element-wise
epilogue. All other computations raise `OutsideForms`.
"""
