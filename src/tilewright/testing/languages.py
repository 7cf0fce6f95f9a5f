"""Defines the contract of kernel languages. Inherit `LanguageContract` in a test file of your language.

    class TestPtx(LanguageContract):
        language = PtxLanguage()
        configuration = Configuration.of({"BLOCK": 128})

        def launch(self) -> Launch:
            return Launch(doubled, (4,), (ArraySpec("x", (512,), "float32"), ArraySpec("out", (512,), "float32")))

No test needs a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tilewright.languages.base import Language, ListArgument, Lowered
from tilewright.machine_code.cubin import read
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec


class LanguageContract(ABC):
    """Tests one language on one small launch that compiles."""

    language: Language
    configuration = Configuration.of({})  # the values that the kernel of the launch reads
    arch = "sm_90"
    seconds = 60.0  # budget of one compilation

    @abstractmethod
    def launch(self) -> Launch:
        """Returns a small launch, with `ArraySpec`s as arrays, that compiles for ``arch`` and ``configuration``."""

    def lowered(self) -> Lowered:
        lowered = self.language.lower(self.launch(), {}, self.configuration, self.arch)
        assert isinstance(lowered, Lowered), lowered
        return lowered

    def test_only_its_own_kernels_are_recognised(self) -> None:
        assert self.language.recognises(self.launch().kernel)
        assert not any(self.language.recognises(other) for other in (None, 1, "kernel", print))

    def test_it_has_a_name(self) -> None:
        assert self.language.name == self.language.name.strip().lower() != ""

    def test_equal_launches_are_compiled_once(self) -> None:
        assert self.lowered().identity == self.lowered().identity
        assert self.lowered().arch == self.arch and self.lowered().configuration == self.configuration

    def test_arguments_are_numbers_and_arrays_of_the_launch(self) -> None:
        launch = self.launch()
        known = {array.name for arg in launch.args for array in (arg if isinstance(arg, list) else [arg])
                 if isinstance(array, ArraySpec)}  # fmt: skip
        for argument in self.language.arguments(launch):
            assert isinstance(argument, (int, float, ArraySpec, ListArgument)), argument
            assert not isinstance(argument, ArraySpec) or argument.name in known, argument.name

    def test_the_machine_code_is_that_of_the_kernel(self) -> None:
        """Tests that two compilers can run at once, and that each cubin has the symbol named by `Lowered`."""
        with ThreadPoolExecutor(2) as pool:
            for built in pool.map(lambda lowered: self.language.assemble(lowered, self.seconds), [self.lowered()] * 2):
                assert isinstance(built, Built), built
                code = read(built.cubin)
                assert code.symbol == built.symbol == self.lowered().symbol
                assert code.symbol == self.language.entry_name(self.launch(), {}, self.configuration, self.arch)
                assert code.symbol.startswith(self.language.kernel_name(self.launch().kernel))
                assert built.arch == self.arch and self.arch.removeprefix("sm_").startswith(str(code.sm))
                assert built.configuration == self.configuration and built.seconds > 0

    def test_broken_code_is_that_candidates_failure(self) -> None:
        failed = self.language.assemble(replace(self.lowered(), code=b"no code"), self.seconds)
        assert isinstance(failed, Failed) and failed.stage in ("compile", "tool")
        assert failed.reason and "\n" not in failed.reason

    def test_the_compilers_budget_is_kept(self) -> None:
        failed = self.language.assemble(self.lowered(), 0.001)
        assert isinstance(failed, Failed) and failed.stage == "tool" and "\n" not in failed.reason

    def test_nothing_is_remembered_of_nothing(self) -> None:
        assert self.language.remember([]) == 0
