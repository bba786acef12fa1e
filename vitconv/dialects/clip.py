"""OpenAI's CLIP, vision tower: quick_gelu, square projection stored transposed.

Source: openai/CLIP, clip/model.py, d05afc4. The published files are TorchScript archives that hold the text tower
too, and three numbers (`input_resolution`, `context_length`, `vocab_size`). LayerNorm is always computed in float32.
"""

from vitconv.dialects._clip import CANNOT, CLIP, DERIVED, OPENAI, RESNET, projection, tower
from vitconv.dialects._parts import why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import norm

DIALECT = Dialect(
    name="clip",
    title="CLIP of OpenAI, vision tower",
    source="openai/CLIP clip/model.py, d05afc4",
    library="clip",
    implies=CLIP,
    author=OPENAI,
    entries=(
        *tower(),
        *norm("ln_pre", "embed.norm"),
        *norm("ln_post", "norm"),
        *projection("proj", transposed=True),
    ),
    forbids=(RESNET,),
    derived=DERIVED,
    cannot=CANNOT | why("ls", "pool.norm"),
    equal=(("a", "d"),),
    under="open-clip",
    marks=("input_resolution", "context_length", "vocab_size"),
)
