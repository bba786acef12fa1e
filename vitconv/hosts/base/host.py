"""The protocol of a host: what it is asked for, and what it gives."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vitconv.errors import UsageError, VitconvError, in_a_line
from vitconv.layout.held import refuse_foreign, refuse_unheld
from vitconv.layout.semantics import Semantics

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitconv.hosts.base.survey import Survey
    from vitconv.hosts.base.tap import Tap


@dataclass(frozen=True)
class Spec:
    """What to build.

    Attributes:
        model: what follows the host's name, such as `vit_small_patch16_224`, `config.json`, `package.module:factory`.
        options: build options by name; each host says which it knows, and refuses others.
        facts: facts that the host is asked to respect where it can (the reference needs them all).
        shapes: {canonical name: shape}, for hosts that build from tensors (the reference).
    """

    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Semantics = field(default_factory=Semantics)
    shapes: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Inputs:
    """What the network takes: `images` [b c height width] or `tokens` [b t d]; `shape` is that of one example."""

    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Built:
    """A network, and what it really is.

    Attributes:
        host: the host's name.
        model: the model's name, as asked for.
        module: the network; its state dict is in one of the dialects.
        dialects: the names of the dialects its state dict can be in, the likeliest first.
        facts: what it will really use, read off the live modules; unknown where it cannot be read.
        survey: every norm with its eps, every dropout and drop-path site, the attention backend, train or eval.
        taps: {canonical name: where the value of that name passes}.
        inputs: what it takes.
        run: `run(module, images)` gives the logits, or the features of a network without a head, as one tensor.
        notes: what the user should know, such as configuration keys that are dropped.
        axes: sizes that its tensors do not say, {axis: size}: the sides of patches that are kept as rows.
        choices: options of its dialect that its keys do not tell, {choice: option}.
    """

    host: str
    model: str
    module: nn.Module
    dialects: tuple[str, ...]
    facts: Semantics
    survey: Survey
    taps: Mapping[str, Tap]
    inputs: Inputs
    run: Callable[[nn.Module, Tensor], Tensor]
    notes: tuple[str, ...] = ()
    axes: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, images: Tensor) -> Tensor:
        """Run the network on images: [b c height width] (or what `inputs` says), float."""
        return self.run(self.module, images)


_BLOCK = re.compile(r"(stages\.\d+\.)?blocks\.\d+")
KERNELS_OPTION = "auto, torch, triton (our LayerNorm and focused attention) or compile (torch.compile of the blocks)"


def _own(spec: Spec) -> Spec:
    """Return the spec without the option that is every host's."""
    return dataclasses.replace(spec, options={k: v for k, v in spec.options.items() if k != "kernels"})


# Arguments by which libraries load weights from their hub, or weights that a checkpoint is to bring.
_DOWNLOADS = ("pretrained", "weights", "weights_backbone", "checkpoint_path")


def _without_download(host: str, spec: Spec) -> Spec:
    """Return the spec without the arguments that would load weights, if they say that none are to be."""
    asked = [n for n in _DOWNLOADS if str(spec.options.get(n) or "none").lower() not in ("none", "false")]
    if asked:
        raise UsageError(
            f"{host}:{spec.model} with {asked[0]}={spec.options[asked[0]]}: weights are never downloaded, and a host"
            f" builds the network alone; name a file of them, as in {host}:{spec.model}@weights.safetensors"
        )
    return dataclasses.replace(spec, options={k: v for k, v in spec.options.items() if k not in _DOWNLOADS})


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: the name on the command line.
        title: what it is, in words.
        dialects: the dialects its networks can speak.
        options: the build options it knows, each with a word on what it does.
        library: the package that must be importable, or None.
        make: build the network, in eval mode.
        describe: tell what a live network of this kind is.
        accepts: whether a live module is one that `describe` knows.
    """

    name: str
    title: str
    dialects: tuple[str, ...]
    options: Mapping[str, str]
    make: Callable[[Spec], nn.Module]
    describe: Callable[[nn.Module, Spec], Built]
    accepts: Callable[[nn.Module], bool]
    library: str | None = None

    def __post_init__(self) -> None:
        """Give every host the option `kernels`, which is no argument of its library."""
        make, describe = self.make, self.describe

        def made(spec: Spec) -> nn.Module:
            from vitconv.hosts.base.kernels import check_kernels

            check_kernels(spec.options)
            if self.library is not None:
                spec = _without_download(self.name, spec)
            try:
                return make(_own(spec))
            except VitconvError:
                raise
            # What a library, or the user's own code, ends with; SystemExit would end vitconv without a word.
            except (Exception, SystemExit) as e:
                what = f"{self.name}:{spec.model}" if spec.model else self.name
                raise UsageError(f"{what} cannot be built with these arguments: {in_a_line(e)}") from e

        def described(module: nn.Module, spec: Spec) -> Built:
            refuse_unheld(module.named_parameters(), type(module).__name__)
            refuse_foreign(module.state_dict(), type(module).__name__)
            built = describe(module, _own(spec))
            if "kernels" not in spec.options:
                return built
            from vitconv.hosts.base.kernels import check_kernels, put_kernels

            blocks = {name: tap.module for name, tap in built.taps.items() if _BLOCK.fullmatch(name)}
            notes = put_kernels(module, blocks, check_kernels(spec.options))
            return dataclasses.replace(built, notes=(*built.notes, *notes))

        object.__setattr__(self, "make", made)
        object.__setattr__(self, "describe", described)
        object.__setattr__(self, "options", {**self.options, "kernels": KERNELS_OPTION})

    def why_not(self) -> str | None:
        """Return why this host cannot be used here, or None."""
        if self.library is None or find_spec(self.library) is not None:
            return None
        return f"{self.library} is not installed"

    def build(self, spec: Spec) -> Built:
        """Build the network of `spec` and describe it.

        Raises:
            UsageError: the library is missing, or an option or model is unknown.
            Refused: the network needs facts that are not known, or cannot be built.
        """
        reason = self.why_not()
        if reason is not None:
            raise UsageError(f"host {self.name} cannot be used: {reason}")
        unknown = sorted(set(spec.options) - set(self.options))
        if unknown and "*" not in self.options:
            known = ", ".join(sorted(self.options)) or "none"
            raise UsageError(f"host {self.name} does not know the option {', '.join(unknown)}; it knows: {known}")
        return self.describe(self.make(spec), spec)

    def run(self, module: nn.Module, images: Tensor) -> Tensor:
        """Run a live network of this kind on images; see `Built.run`."""
        return self.describe(module, Spec()).run(module, images)
