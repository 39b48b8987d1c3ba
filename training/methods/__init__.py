"""Methods: the communication methods by name; each is a preset of one rule in a file of its own.

Room: training (pure). A new one is a file with a function of this shape, and a line here.
"""

from collections.abc import Callable

from assay.protocol.update_rule import RuleSpec
from assay.training.methods.choices import Choices
from assay.training.methods.demo import demo
from assay.training.methods.diloco import diloco
from assay.training.methods.fedavg import fedavg
from assay.training.methods.sparseloco import sparseloco
from assay.training.methods.streaming_diloco import streaming_diloco

METHODS: dict[str, Callable[[Choices], RuleSpec]] = {
    "demo": demo,
    "sparseloco": sparseloco,
    "diloco": diloco,
    "streaming-diloco": streaming_diloco,
    "fedavg": fedavg,
}
