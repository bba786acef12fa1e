"""Two sides on the bench: their weights in every set, the images, and every run that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vitconv.errors import Refused, UsageError, VitconvError, in_a_line
from vitconv.hosts.base.autocasts import Autocast
from vitconv.hosts.base.host import Built
from vitconv.parity.precision import precision_of
from vitconv.parity.probe import IMAGES, RESIZED, probe_images, probe_weights, resized_image
from vitconv.parity.side import Side, module_of
from vitconv.parity.trace import Hook, Trace, trace

PROBE, GIVEN = "probe", "given"
Progress = Callable[[int, int, str], None]
# Float64 traces of the baseline are kept for later stages up to this many bytes, and computed again past it.
KEEP_BYTES = 1 << 30


# What torch and hand-written kernels answer a dtype with that they do not know.
# A side is anybody's code: it may end with anything, and SystemExit would end vitconv without a word.
_ERRORS = (Exception, SystemExit)


class CannotRun(Refused):
    """A side's own code ended with an error."""

    def __init__(self, side: Side, precision: str, error: BaseException) -> None:
        self.label, self.precision = side.label, precision
        self.said = in_a_line(error)
        super().__init__(f"{side.label} ({side.spec}) does not run in {precision}: {self.said}")


@dataclass
class Pair:
    """The two sides and what is shared by all stages.

    Attributes:
        a, b: the sides; a is the baseline.
        images: {name: [b c height width], float64}.
        device: where everything runs.
        seed: of the probes and of the cotangent.
        blockwise: bound the memory; see `trace`.
        sink: told every trace with the name of its weights, to be saved.
        progress: told runs done, runs in all, and what runs now.
        planned: runs in all, as far as known.
        finest: what `vitconv.parity.capability.finest` found of each side.
        autocasts: those that each side switches on itself, as far as it was watched.
        own_size: why there are no images of another size, or "".
    """

    a: Side
    b: Side
    images: Mapping[str, Tensor]
    device: str = "cpu"
    seed: int = 0
    blockwise: bool = False
    sink: Callable[[Trace, str], None] | None = None
    progress: Progress | None = None
    planned: int = 0
    runs: int = 0
    finest: dict[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    own_size: str = ""
    autocasts: dict[str, tuple[Autocast, ...]] = field(default_factory=dict, repr=False)
    _kept: dict[tuple[str, ...], Trace] = field(default_factory=dict, repr=False)
    _probe: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    _live: dict[str, tuple[tuple[str, ...], Built]] = field(default_factory=dict, repr=False)
    _gains: dict[str, dict[str, dict[str, Tensor]]] = field(default_factory=dict, repr=False)
    _others: dict[str, Side | None] = field(default_factory=dict, repr=False)
    _exact: dict[tuple[torch.dtype, str], bool] = field(default_factory=dict, repr=False)

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets of weights there are: probe weights, and those given, if any."""
        return (PROBE, GIVEN) if self.a.weights is not None and self.b.weights is not None else (PROBE,)

    @property
    def judged_with(self) -> str:
        """The set of weights that precisions are judged with: those given, if any."""
        return self.sets[-1]

    def exact_in(self, dtype: torch.dtype, of: str) -> bool:
        """Return whether a dtype holds the baseline's weights of a set without rounding."""
        if (dtype, of) not in self._exact:
            every = self.weights(self.a, of).values()
            self._exact[dtype, of] = all(torch.equal(t.to(dtype).double(), t) for t in every)
        return self._exact[dtype, of]

    def side(self, label: str) -> Side:
        """Return a side by its label."""
        return self.a if label == self.a.label else self.b

    def gains(self, of: str) -> dict[str, dict[str, Tensor]]:
        """Return {label of the edited side: {tap: gain}}: there the value is `gain` times that of the other side.

        A fold takes a factor out of the way from a branch to the stream: ahead of it, the branch is as much larger.
        """
        if of not in self._gains:
            found = {side.label: self._gains_of(side, of) for side in (self.a, self.b) if side.edits is not None}
            self._gains[of] = {label: gains for label, gains in found.items() if gains}
        return self._gains[of]

    def _gains_of(self, side: Side, of: str) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        other = self.b if side is self.a else self.a
        for done in () if side.edits is None else side.edits.network.log:
            if done.edit == "fold-layer-scale":
                before = self.before(side, of)
                for scale in done.removed:
                    block, _, last = scale.rpartition(".")
                    tap = f"{block}.{'attn' if last == 'ls1' else 'mlp'}"
                    out[tap] = before[scale] * out.get(tap, torch.ones(()))
            elif done.edit == "fold-deepnorm":
                alpha = other.facts.residual_alpha
                assert alpha is not None
                for tap in (n for n in side.built.taps if n.endswith((".attn", ".mlp"))):
                    out[tap] = out.get(tap, torch.ones((), dtype=torch.float64)) / alpha
        return out

    def _in_shared_terms(self, t: Trace, side: Side, of: str) -> Trace:
        """Bring taps of both sides to one scale: values to that of the edited side, gradients to the other's."""

        def scaled(values: Mapping[str, Tensor], gains: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {n: x.double() * gains[n].to(x.device).double() if n in gains else x for n, x in values.items()}

        for label, gains in self.gains(of).items():
            if side.label == label:
                t = replace(t, tap_grads=scaled(t.tap_grads, gains))
            else:
                t = replace(t, taps=scaled(t.taps, gains))
        return t

    def weights(self, side: Side, of: str) -> dict[str, Tensor]:
        """Return a side's canonical weights, float64, of the set `of`."""
        if of == GIVEN:
            assert side.weights is not None
            return {name: t.double() for name, t in side.weights.items()}
        if not self._probe:
            # Of an edited side the tensors follow from those of the other.
            whole = {n: s for x in (self.a, self.b) if x.edits is None for n, s in x.shapes.items()}
            ties = [group for x in (self.a, self.b) if x.edits is None for group in x.bridge.ties]
            self._probe["whole"] = probe_weights(whole, self.seed, ties)
        whole = self._probe["whole"]
        return side.edits.weights(whole) if side.edits is not None else {n: whole[n] for n in side.shapes}

    def other(self, of: str, build: Callable[[], Side | None]) -> Side | None:
        """Return the baseline in other code, for a set of weights, built when first asked for."""
        if of not in self._others:
            self._others[of] = build()
        return self._others[of]

    def before(self, side: Side, of: str) -> dict[str, Tensor]:
        """Return the weights ahead of a side's edits: those of the other side."""
        return self.weights(self.b if side is self.a else self.a, of)

    def network(self, side: Side, precision: str, of: str, *, rounded: torch.dtype | None = None) -> Built:
        """Return a side's network in a precision, with the weights of a set; one in float64 and one more are kept.

        `rounded`: round the weights to this dtype first.
        """
        dtype = precision_of(precision).dtype
        slot, key = f"{side.label} {dtype == torch.float64}", (str(dtype), of, str(rounded))
        if self._live.get(slot, ((), None))[0] != key:
            self._live.pop(slot, None)
            chosen = self.weights(side, of)
            if rounded is not None:
                chosen = {n: t.to(rounded).double() for n, t in chosen.items()}
            built = module_of(side, dtype=dtype, device=self.device, weights=chosen)
            self._live[slot] = (key, built)
        # A network that is not run holds no gradients; those that were looked at are the trace's.
        for other, (_, built) in self._live.items():
            if other != slot:
                built.module.zero_grad(set_to_none=True)
        return self._live[slot][1]

    def run(
        self,
        side: Side,
        inputs: str,
        precision: str,
        of: str,
        *,
        backward: bool = True,
        teacher: Trace | None = None,
        loss_scale: float = 1.0,
        hooks: tuple[Hook, ...] = (),
        rounded: torch.dtype | None = None,
        images: Tensor | None = None,
        cotangent: Tensor | int | None = None,
        seed: int = 0,
        built: Built | None = None,
        saved: bool = True,
    ) -> Trace:
        """Run one side once; float64 runs that nothing was changed about are kept while there is room.

        `saved`: whether the run is one that is judged, and not only looked at: those go to the sink.

        Raises:
            UsageError: no such images.
            CannotRun: the network ends with an error.
        """
        if inputs not in self.images:
            raise UsageError(f"inputs {inputs!r}: there are {', '.join(self.images)}")
        plain = precision == "fp64" and teacher is None and not hooks and images is None and cotangent is None
        plain = plain and backward and seed == 0 and built is None
        key = (side.label, inputs, of, str(rounded))
        if plain and key in self._kept:
            return self._kept[key]
        self._tell(f"{side.label} {precision} {inputs} ({of} weights)")
        try:
            done = trace(
                built or self.network(side, precision, of, rounded=rounded),
                self.images[inputs] if images is None else images,
                self.seed if cotangent is None else cotangent,
                precision,
                side=side.label,
                inputs=inputs,
                bridge=side.bridge,
                edits=None if side.edits is None else (side.edits, self.before(side, of)),
                backward=backward,
                teacher=teacher,
                loss_scale=loss_scale,
                hooks=hooks,
                blockwise=self.blockwise,
                seed=seed,
            )
        except VitconvError:
            raise
        except _ERRORS as e:
            raise CannotRun(side, precision, e) from e
        done = self._in_shared_terms(done, side, of)
        self.runs += 1
        whole = teacher is None and not hooks and images is None and built is None and seed == 0
        if self.sink is not None and whole and saved:
            self.sink(done, of if rounded is None else f"{of}@{str(rounded).removeprefix('torch.')}")
        if plain:
            self._keep(key, done)
        return done

    def _keep(self, key: tuple[str, ...], done: Trace) -> None:
        """Keep a trace while there is room; for those that every precision is held against, room is made."""

        def asked_again(k: tuple[str, ...]) -> bool:
            return k[0] == self.a.label and k[2] == self.judged_with

        spare = [k for k in self._kept if not asked_again(k)] if asked_again(key) else []
        while _nbytes(done) + sum(map(_nbytes, self._kept.values())) > KEEP_BYTES:
            if not spare:
                return
            del self._kept[spare.pop()]
        self._kept[key] = done

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(self.runs, max(self.planned, self.runs + 1), what)


def pair_of(a: Side, b: Side, *, inputs: tuple[str, ...] = (), seed: int = 0, device: str = "cpu") -> Pair:
    """Put two sides on the bench with probe images of what both take.

    Raises:
        UsageError: they take different inputs, or there are no images of such a name.
    """
    left, right = a.built.inputs, b.built.inputs
    if left != right:
        raise UsageError(f"A takes {left.kind} {list(left.shape)}, B takes {right.kind} {list(right.shape)}")
    images = probe_images(left, seed)
    unknown = [name for name in inputs if name not in IMAGES]
    if unknown:
        raise UsageError(f"inputs {', '.join(unknown)}: expected some of {', '.join(IMAGES)}")
    own_size = ""
    if not inputs or RESIZED in inputs:
        other, own_size = _resized(a, b, seed)
        images |= other
    chosen = {n: x for n, x in images.items() if not inputs or n in inputs}
    if not chosen:
        raise UsageError(f"inputs {RESIZED}: {own_size}")
    return Pair(a, b, chosen, device, seed, own_size=own_size)


def _resized(a: Side, b: Side, seed: int) -> tuple[dict[str, Tensor], str]:
    """Return images of another size, if both networks take them, or else which one does not and what it says."""
    sizes, inputs = a.bridge.match.sizes, a.built.inputs
    if a.dialect_family != "plain" or inputs.kind != "images" or not {"p", "q"} <= {*sizes}:
        return {}, "networks of this kind are run at their own size only"
    image = resized_image(inputs, (sizes["p"], sizes["q"]), seed)
    for side in (a, b):
        module = side.built.module
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                side.built.run(module, image.to(dtype))
        except (*_ERRORS, VitconvError) as e:
            said = (str(e).strip().splitlines() or [type(e).__name__])[0]
            return {}, f"{side.label} takes images of its own size only ({said})"
    return {RESIZED: image}, ""


def swapped(pair: Pair) -> Pair:
    """Return the pair with the other side as the baseline."""
    fresh: dict[str, dict[Any, Any]] = {n: {} for n in ("_kept", "_probe", "_live", "_others", "_exact")}
    return replace(pair, a=pair.b, b=pair.a, finest={}, autocasts={}, **fresh)  # type: ignore[arg-type]


def _nbytes(t: Trace) -> int:
    return sum(x.nbytes for part in (t.taps, t.tap_grads, t.grads) for x in part.values())
