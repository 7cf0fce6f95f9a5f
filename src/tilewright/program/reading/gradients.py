"""Finds the parts of a program that compute gradients, directly or through functions of the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.reading.module import Function, ReadModule

WITH = ("backward", "requires_grad_", "requires_grad", "grad", "retain_grad")
PACKAGES = ("torch.autograd", "torch.optim")
HIDING = ("lightning", "pytorch_lightning", "transformers", "accelerate", "ignite", "fastai", "deepspeed", "ray")
"""Packages that may train a model in their own code."""


def gradient_in(module: ReadModule, inside: ast.AST) -> ast.AST | None:
    """Returns the first node inside ``inside`` that computes or requires gradients; None if there is no such node."""
    for node in ast.walk(inside):
        if isinstance(node, ast.Attribute) and node.attr in WITH:
            return node
        if module.full(node).startswith(PACKAGES):
            return node
    return None


def training_call(module: ReadModule, inside: ast.AST) -> ast.AST | None:
    """Returns a node inside ``inside`` that computes gradients, or that calls a function of the program that does; else
    None.
    """
    if (found := gradient_in(module, inside)) is not None:
        return found
    training = _training_names(module)
    calls = (call for call in ast.walk(inside) if isinstance(call, ast.Call))
    if "forward" in training:
        return next(calls, None)  # a call of any model may call this `forward`
    return next((call for call in calls if _name(call) in training), None)


def never_trains(module: ReadModule) -> bool:
    """Returns whether no file of the program computes gradients or imports a package that may."""
    return not any(
        gradient_in(each, each.file.tree) is not None or each.file.packages & set(HIDING) for each in module.program
    )


def _training_names(module: ReadModule) -> set[str]:
    """Returns the names of the program's functions and classes that compute gradients, directly or through calls of
    others.
    """
    parts = [(name, each, node) for each in module.program for name, node in _named(each)]
    found = {name for name, each, node in parts if gradient_in(each, node) is not None}
    while True:
        more = {
            name
            for name, _, node in parts
            if name not in found and any(isinstance(n, ast.Call) and _name(n) in found for n in ast.walk(node))
        }
        if not more:
            return found
        found |= more


def _named(module: ReadModule) -> Iterator[tuple[str, ast.AST]]:
    for node in module.file.nodes:
        if isinstance(node, Function):
            owner = module.class_of(node)
            constructor = node.name == "__init__" and owner is not None
            yield (owner.name if constructor and owner is not None else node.name), node


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
