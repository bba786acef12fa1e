"""The text of docs/experiments.md; what stands in braces is worked out from the results."""

HEAD = """# Experiments: what the checks say before, what a short training says after

Made by `python -m vitconv.bench.experiments` (`run`, then `checks`, then `page`) on a CPU, one thread; the results
are in `docs/experiments/`. Networks are small, trainings are short, seeds are few: read the gross differences, not
the digits. All are trained on scikit-learn's 8x8 digits (1437 images, patch 2, 16 patches and a class token, accuracy
on 360 held out) by AdamW (0.9, 0.95), cosine to zero, no clipping, no augmentation, dropout off.
"""

PLACEMENT = """
## Depth and norm placement

Width 48, 3 heads, batch 32, 150 steps, learning rate 1e-3, decay 0.05, with 40 steps of warm-up and with none, seed 0
unless it is said. Matrices are Xavier's (each of q, k, v by itself); DeepNorm has alpha = (2N)^(1/4), and beta right,
on queries and keys too (xformers 0.0.12 to 0.0.28), or missing; gain 0 is Swin-v2's start, with matrices of .02. *K
and V raw*: pre-norm whose keys and values read the stream itself, as xformers up to 0.0.9.

*rho* is the smallest over the largest gradient of queries and keys over blocks. *after*: trains (loss below 0.93 ln
10 at the end), needs warm-up (trains only with it), stuck (never clearly below ln 10), collapses, diverges.
"""

GATES = """
### Why a gain of 0 starts slowly

Res-post-norm, x + norm(f(x)), at width 48 with what the first table does not part: the gain of the norms at the start
(0, .1, 1) and the matrices (.02, or Xavier's .144). 40 steps of warm-up, the rest as above. Adam moves an element by
at most about lr in a step, so the sum of the rates is as far as a gain comes from 0.

Two things are slow, each alone. *The gain*: with Xavier's matrices a start of .1 or 1 learns in 150 steps and one of
0 does not, or hardly; with plans whose rates sum to more it does. `gate-growth` knows that sum before training and
tells it; [a test on other runs](opening.md) shows that it is needed and not enough for a warning.
*Matrices of .02 at this width*, whatever the gain: attention logits are then below .05 and attention is a plain mean;
with queries and keys seven times as large the same network moves. Pre-norm with matrices of .02 is not slow, nor is
LayerScale of 1e-5 on it. Swin-v2 itself has cosine attention with a scale of 10, so that its logits are not small:
no check warns of the second. So the rows *res-post-norm, gain 0* of the first table are slow for both reasons, and
stuck in 150 steps although the checks say ok: they tell of the gain, and a warning of it would be one of Swin-v2.
"""

REPORT = """
## The first report's pre-norm network

The report's ViT (its own embeddings and head) around our twin of xformers' factory, width 96, 3 heads, batch 64, 300
steps, 40 of warm-up, decay 0.1, init .02, LayerNorm eps 1e-6. *K and V raw* is release 0.0.9: pre-norm normalises the
input of the queries only. *nothing* is release 0.0.11, which differs from it in that alone. The other rows add one
fault at a time to one of the two: LayerNorm eps 1e-5; the report's init function, which misses q, k and v up to
0.0.11; FusedMLP, whose biases are never trained. *grew*: the stream's RMS passed a hundred times its start;
*collapsed*: and the loss is that of guessing, or not finite; *stuck*: that loss, without such growth. amp-fp16 is
CUDA autocast's policy and GradScaler's rule, emulated.
"""

SEEN = """
### Which check sees it before training

How many runs of each group had a finding of each level; checks that are not listed said nothing in any.
"""

CAUSE = """
The one that separates is the response of a branch to its stream: with the stream made ten times as large, attention
grows by a power of {power_low} to {power_high} where keys and values are raw, and {right_low} to {right_high} where
they are normalised. `stream-growth` measures it on any network, with no knowledge of its release; `facts` knows it
where the release or the twin is known. The growth of the stream under one step does not separate the two, nor do rho,
logits or entropy at the start: nothing is wrong with the first forward and backward pass.

## Why did the pre-norm ViT-B of the first report collapse?

**Shown here, at this size:** un-normalised keys and values alone turn a run that learns into one whose attention
logits and stream grow by orders of magnitude within a hundred steps and which never comes back. It happens in
float32, so half precision is not its cause, though the values leave float16's range at once: under emulated fp16 the
forward pass is soon not finite, GradScaler skips every step from there on, and the weights stay where they are. Depth
and learning rate decide: at 4e-3 and 6 blocks the stream grows as well and the network still learns, at 2e-3 and 12
blocks nothing happens, in float32 as in half precision; at 1e-3 the same fault trains at 6 and 12 blocks, and at 24
and 48 with one seed of two in the first table (width 48). No other difference that the thread named makes logits and
stream grow so by itself; accuracy and largest stream RMS of those runs: LayerNorm eps 1e-5: {eps}. Init that misses
q, k and v: {init}. FusedMLP: {fused}. Added to raw keys and values, they do not save it: {raw_with} collapsed. Of all
runs with normalised keys and values, {right_all} did. At the loss of guessing after 150 steps, without such growth:
{right_stuck}; so 4e-3 is near the edge for a sound network of 12 or 24 blocks too.

**Consistent with the report:** its pre-norm runs are of releases and commits up to d4c28fb (2022-03-01), and the fix,
78bc58cb, is of 2022-03-11; "one update completely breaks the model", no NaN at first, not on CIFAR and not on a
smaller ViT; eps, Triton and a smaller init made no difference.

**Not shown:** that this was the cause at ViT-B on ImageNet. No run here has that width, data, batch, augmentation or
length. Its learning rate, 1e-4 by the scaling rule at batch 4096, is 1.6e-3; at width 96 and 12 blocks collapse is
shown at 4e-3, and how the threshold moves with width, depth, batch and number of steps was mapped only as far as the
tables go. Which release ran in which plot is only partly known. The other faults alone were run with two seeds and
for half the schedule, so a rare effect of one of them is not excluded. The
later runs of the thread, DeepNorm and post-norm, have other causes: beta on queries and keys
or missing on values, a .02 init over it, and the gradient of queries and keys that vanishes with depth (the first
table).
"""

LIMITS = """
## Limits

- One data set, one width per study, one to three seeds. A network that is stuck after 150 steps may train in 1500.
- The thresholds of `gradient-profile` were set on networks like these (width 48, depths 6 to 24), and after a first
  look at this table three levels were changed: logits of a Xavier head no longer warn, gates of 0 are no longer an
  error of `loss-at-init`, and DeepNorm without beta warns unless the scheme claims DeepNorm. So the confusion table
  is no independent test of these; `stream-growth`'s threshold follows from what a norm does.
- `gate-growth` was made after these runs and warned of a gain of 0. On [other runs](opening.md) that was mostly a false
  alarm, so it no longer does, and the tables above have its new levels. The loss of such a network falls, from 2.31 to
  about 2.2 in 150 steps at 1e-3, and counts as stuck.
- Half precision is emulated: products are rounded once, as tensor cores do, but sums are not split as on a card.
- Errors of `facts` and `stream-growth` are about what the network is. Whether it fails depends on depth and learning
  rate: shallow or slow trainings of such a network go well, and are counted as false alarms.
"""
