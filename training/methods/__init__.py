"""Methods: the communication methods by name; each is a preset of one rule in a file of its own.

Room: training (pure). A new one is a file with a function of this shape, and a line here.
"""

from collections.abc import Callable

from protocol.rule import RuleSpec
from training.methods.choices import Choices
from training.methods.demo import demo
from training.methods.diloco import diloco
from training.methods.fedavg import fedavg
from training.methods.sparseloco import sparseloco
from training.methods.streaming_diloco import streaming_diloco

METHODS: dict[str, Callable[[Choices], RuleSpec]] = {
    "demo": demo,
    "sparseloco": sparseloco,
    "diloco": diloco,
    "streaming-diloco": streaming_diloco,
    "fedavg": fedavg,
}
