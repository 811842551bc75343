"""Published systems, each with its question, command, published numbers and ours: docs/seeds.md.

Run: python scripts/seeds.py [WORD] (some minutes; with a word, the sections of systems that have it).
A row is a command that runs here and now; nothing is printed that no command answered.
"""

import functools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/seeds.md"

MISS: dict[str, Callable[[float, float], str]] = {
    "share": lambda here, told: f"{100.0 * (here / told - 1.0):+.0f} %",
    "points": lambda here, told: f"{here - told:+.1f} points",
    "count": lambda here, told: "equal" if here == told else f"{here - told:+.0f}",
    "decades": lambda here, told: f"{here - told:+.2f} decades",
}
"""Words of an error, by kind."""


class Figure(NamedTuple):
    """A number that a command tells, beside the published one.

    Attributes:
        name: what it is, with unit.
        here: of the document that the command prints.
        told: published number, both ends of a published band, or None where none could be read.
        form: format of both.
        miss: kind of error, of `MISS`.
    """

    name: str
    here: Callable[[Any], float]
    told: float | tuple[float, float] | None = None
    form: str = "{:.2f}"
    miss: str = "share"

    def row(self, document: Any) -> str:
        """Row of the table."""
        here = float(self.here(document))
        if self.told is None:
            cells = "none could be read", self.form.format(here), "-"
        elif isinstance(self.told, tuple):
            low, high = self.told
            word = "inside" if low <= here <= high else MISS[self.miss](here, low if here < low else high)
            cells = f"{self.form.format(low)} to {self.form.format(high)}", self.form.format(here), word
        else:
            cells = self.form.format(self.told), self.form.format(here), MISS[self.miss](here, self.told)
        return "| " + " | ".join((self.name, *cells)) + " |"


class Row(NamedTuple):
    """A question to a published system.

    Attributes:
        system: name and paper.
        question: in words.
        command: `jaxscale ...`, several lines of it, or lines of Python of which the last prints JSON.
        figures: of its answer.
        note: what the numbers rest on, and what is missing.
    """

    system: str
    question: str
    command: str
    figures: tuple[Figure, ...]
    note: str = ""


def at(*path: Any) -> Callable[[Any], Any]:
    """Value of a document under keys and places."""

    def get(document: Any) -> Any:
        for key in path:
            document = document[key]
        return document

    return get


def change(name: str) -> Callable[[Any], float]:
    """Change of a curve from its first to its last point [%]."""
    return lambda document: 100.0 * (document[name][-1] / document[name][0] - 1.0)


def percent(*path: Any) -> Callable[[Any], float]:
    """Share of a document [%]."""
    return lambda document: 100.0 * at(*path)(document)


def power(*path: Any) -> Callable[[Any], float]:
    """Power of ten of a number."""
    return lambda document: math.log10(at(*path)(document))


FERNANDEZ = "Hardware scaling trends (Fernandez et al., arXiv 2411.13055)"
ERDIL = "Limits of data movement (Erdil and Schneider-Joseph, arXiv 2411.01137)"
DEEPPOOL = "DeepPool (Park et al., arXiv 2112.10065)"
LAYOUTS = "Efficient parallelization layouts (Hagemann et al., arXiv 2311.05610)"
MADMAX = "MAD-Max (Hsia et al., arXiv 2310.02784)"
PIPETTE = "Pipette (Yim et al., arXiv 2405.18093)"
BAND = (2.2, 2.4)


def trend(gpu: str, first: int, last: int) -> str:
    """Command of a curve of fully sharded training."""
    return f"jaxscale trends --model llama2-7b --gpu {gpu} --from {first} --to {last}"


def burst(network: str, batch: int) -> str:
    """Command of a network in bursts."""
    return f"jaxscale burst --network {network} --n-gpus 8 --global-batch {batch}"


def wall(scenario: str) -> str:
    """Command of a scenario of the limits."""
    return f"jaxscale limits --scenario {scenario} --from 1e25 --to 1e32"


def layout(model: str, mfu: float, tp: float, pp: float) -> Row:
    """Best plan of a Llama on 64 A100."""
    return Row(
        LAYOUTS,
        f"Which plan trains {model} best on 64 A100?",
        f"jaxscale plan --model {model} --gpu a100-80gb --n-gpus 64 --global-batch 2048 --seq-len 2048",
        (
            Figure("MFU of the best plan [%]", percent("best", "mfu"), mfu, "{:.1f}", "points"),
            Figure("its tp", at("best", "tp"), tp, "{:.0f}", "count"),
            Figure("its pp", at("best", "pp"), pp, "{:.0f}", "count"),
            Figure("its microbatch [sequence]", at("best", "micro_batch_size"), 1.0, "{:.0f}", "count"),
        ),
    )


def placed(stated: str = "") -> str:
    """Command of plans on sixteen nodes with measured links."""
    asked = "jaxscale plan --model llama-65b --gpu a100-80gb --n-gpus 128 --global-batch 512 --seq-len 2048"
    return f"{asked} --links data/links/sixteen_nodes_drawn.csv {stated}".strip()


def both_orders(what: str, link: str, best: float, given: float) -> tuple[Figure, Figure]:
    """Figures of a link, with published numbers, in the best order of nodes and in the given order [GB/s]."""
    return (
        Figure(f"{what} [GB/s]", at("placement", f"{link}_gb_per_s"), best),
        Figure("in the order of the file [GB/s]", at("placement", f"given_{link}_gb_per_s"), given),
    )


def undisturbed(document: Any) -> float:
    """Step without the update of weights and tables [ms]."""
    terms = document["terms_s"]
    work = document["step_time_s"] - terms["straggler"]
    return 1e3 * document["step_time_s"] * (1.0 - terms["optimizer"] / work)


PARTEL = """import jax, json, numpy as np
from scipy.optimize import brentq, minimize
from jaxscale.islands import equal_finish
jax.config.update("jax_enable_x64", True)
draw, n = np.random.default_rng(0), 8
finish = lambda s, o, a, c: equal_finish(o, a + c / jax.nn.softmax(s), 1.0)[0]
joint, saved = jax.jit(jax.value_and_grad(finish)), []
for _ in range(40):
    o, a, c = draw.uniform(0, 0.1, n), 10.0 ** draw.uniform(0, 1, n), 10.0 ** draw.uniform(0, 1, n) / n
    best = minimize(joint, np.zeros(n), (o, a, c), jac=True).fun
    equal, load = max(o + (a + n * c) / n), finish(np.zeros(n), o, a, c)
    link = brentq(lambda t: sum(c / (n * (t - o) - a)) - 1.0, max(o + a / n) + 1e-9, 1e3)
    saved.append([100.0 * (1.0 - best / one) for one in (equal, load, link)])
print(json.dumps(dict(zip(("equal", "load", "link"), np.median(saved, 0).tolist()))))"""


BLOCKING = """import sys; sys.path.append("notebooks")
import jax, json
from job_streams import POLICIES, stated_stream, study_blocking
rate = jax.jit(study_blocking)(jax.random.key(0), stated_stream()).rate
print(json.dumps(dict(zip(POLICIES, rate.tolist()))))"""


EDGE = "Partitioned edge learning (PARTEL, arXiv 2003.04544)"
FUSION = "FusionLLM (arXiv 2410.12707) and compressed activations (AQ-SGD, arXiv 2206.01299)"
SUBNETS = "Independent subnetworks (arXiv 1910.02120) and ResIST"
FLEET = "jaxscale islands data/fleets/{}.toml --model {} --global-batch {}"
EIGHT = FLEET.format("eight_v100_{}", "gpt2-xl", 32)

LATE = """import json
from jaxscale import islands, laws
late, law = islands.published_modes()["asynchronous"], laws.loss_law()
steps = {n: float(islands.tokens_factor(late, islands.gradient_delay(n))) for n in (1, 8, 32)}
rise = float(law.loss(1e10, 2e11 / islands.tokens_factor(late, 1.0)) - law.loss(1e10, 2e11))
print(json.dumps({"steps": list(steps.values()), "rise": rise}))"""


def mode(name: str, *path: Any, table: str = "further_modes") -> Callable[[Any], Any]:
    """Value of a mode of `jaxscale islands`."""
    return lambda document: at(*path)(next(one for one in document[table] if one["mode"] == name))


ROWS: list[Row] = [
    Row(
        FERNANDEZ,
        "What do sixteen times more H100 cost a 7B model under full sharding, in pace, power and energy?",
        trend("h100-80gb", 128, 2048),
        (
            Figure("tokens/s per chip, 128 to 2,048 [%]", change("tokens_per_s_per_chip"), -37.2, "{:.1f}", "points"),
            Figure("power per chip [%]", change("chip_power_w"), -5.87, "{:.1f}", "points"),
            Figure("tokens/J [%]", change("tokens_per_joule"), -33.3, "{:.1f}", "points"),
            Figure("gain of tensor parallelism at 2,048 [%]", percent("best_tp", "gain", -1), 52.6, "{:.1f}", "points"),
            Figure("best tensor degree at 2,048", at("best_tp", "value", -1), (2.0, 4.0), "{:.0f}"),
            Figure("exposed communication at 128 [%]", percent("exposed_share", 0), None, "{:.1f}"),
        ),
        "The fall hangs on the congestion of the network, which the paper does not tell: with the latencies that a "
        "quiet ring has nothing falls, with those of a busy one (2.15 times, measured elsewhere) 38 %, by a "
        "sum on paper. "
        "Published "
        "numbers are those that summaries of the paper quote, the gain of tensor parallelism from memory. The "
        "paper's knee at 128 chips does not come out: collectives hide up to 1,024.",
    ),
    Row(
        FERNANDEZ,
        "How well does a 7B model use A100, 256 chips?",
        trend("a100-80gb", 256, 512),
        (Figure("MFU [%]", percent("mfu", 0), 59.67, "{:.1f}", "points"),),
    ),
    Row(
        FERNANDEZ,
        "And H100?",
        trend("h100-80gb", 256, 512),
        (Figure("MFU [%]", percent("mfu", 0), 40.77, "{:.1f}", "points"),),
    ),
    Row(
        ERDIL,
        "How far can training on H100 scale?",
        wall("default"),
        (
            Figure(
                "end of linear scaling [decade of flop]", power("thresholds", "end_of_linear"), 28.3, miss="decades"
            ),
            Figure("a tenth of the utilisation [decade]", power("thresholds", "tenth"), 31.3, miss="decades"),
            Figure("no plan ends in three months [decade]", power("thresholds", "wall"), 31.7, miss="decades"),
            Figure("highest utilisation [%]", percent("plateau"), 70.0, "{:.1f}", "points"),
        ),
        "Digitised from the paper's figures, whose curve is met to 1.8 points.",
    ),
    *(
        Row(
            ERDIL,
            question,
            wall(scenario),
            (Figure("end of linear scaling [decade]", power("thresholds", "end_of_linear"), told, miss="decades"),),
        )
        for question, scenario, told in (
            ("What would NVLink between all chips bring?", "global-nvlink", 30.0),
            ("And 1 TB/s of optics?", "optical-interconnect", None),
            ("And a batch ten times as large?", "batch-x10", None),
            ("And if models stay as shallow as today?", "depth-fixed", None),
        )
    ),
    Row(
        ERDIL,
        "And with the chips of 2012 (GTX 580)?",
        wall("gtx580"),
        (Figure("highest utilisation [%]", percent("plateau"), None, "{:.1f}"),),
        "The paper says that 1e26 flop would have taken 16 million of them at 80 % of the utilisation.",
    ),
    Row(
        ERDIL,
        "What does the light of 1 TB/s take, and from which run on does it save energy and money on H100?",
        "jaxscale limits --scenario default --scenario optical-interconnect --scenario co-packaged-optics "
        "--from 1e25 --to 1e32",
        (
            Figure("power of the light per chip [W]", at(1, "costs", "optics_power_w"), None, "{:.0f}"),
            Figure("price of the light per chip [$]", at(1, "costs", "optics_capital_dollars"), None, "{:,.0f}"),
            Figure("less energy from [decade]", power(1, "costs", "less_energy_from_flop")),
            Figure("the same, co-packaged [decade]", power(2, "costs", "less_energy_from_flop")),
            Figure("less money from [decade]", power(1, "costs", "less_money_from_flop")),
        ),
        "The paper has neither energy nor money. Transceivers are NVIDIA's of 2025 (30 W and 1,000 dollars for 1.6 "
        "Tbit/s, 9 W co-packaged, six for each port), chips and hosts those of `data/trends.toml`.",
    ),
    *(
        Row(
            DEEPPOOL,
            f"What do bursts and background jobs bring {network} with {batch} samples on 8 A100?",
            burst(network, batch),
            (
                Figure(
                    "throughput of the cluster over data parallelism, stated interference",
                    at("multiplexing", "cluster", "ratio"),
                    (1.2, 2.4),
                ),
                Figure("the same without interference", at("multiplexing", "ideal", "ratio"), (1.2, 2.4)),
                Figure(
                    "iteration in bursts over data parallel",
                    lambda d: d["burst"]["time_s"] / d["data_parallel"]["time_s"],
                ),
            ),
        )
        for network, batch in (
            ("vgg16", 16),
            ("vgg16", 32),
            ("wide_resnet101_2", 16),
            ("inception_v3", 16),
            ("inception_v3", 32),
        )
    ),
    Row(
        DEEPPOOL,
        "Does the released planner's own plan come out, with its formula of the gradients' bytes?",
        burst("vgg16", 32) + " --synchronisation released",
        (
            Figure("one GPU [ms]", lambda d: 1e3 * d["single_gpu_time_s"], 44.79),
            Figure("data parallel [ms]", lambda d: 1e3 * d["data_parallel"]["time_s"], 11.99),
            Figure("released planner [ms]", lambda d: 1e3 * d["released_planner"]["time_s"], 11.59),
        ),
    ),
    Row(
        "Partitioning by reinforcement learning (PAC-ML, arXiv 2301.13799)",
        "How many jobs with deadlines does a cluster of 32 servers turn away, split as far as possible or as needed?",
        BLOCKING,
        (
            Figure(
                "fewer blocked jobs than at the maximum degree [%]",
                lambda d: 100.0 * (1.0 - d["just_enough"] / d["maximum"]),
                (0.0, 56.2),
                "{:.1f}",
                "points",
            ),
        ),
        "Published: up to 56.2 % fewer, by a learned policy; here by a rule in closed form on a stated stream.",
    ),
    Row(
        "Performance modelling and workload analysis (arXiv 2407.14645)",
        "How far off are predicted latencies of NVIDIA's Llama-2 table?",
        "jaxscale serving predict data/serving/nvidia_nemo_llama2.csv",
        (Figure("mean error of 22 latencies [%]", at("errors", "e2e_latency_s", "mape"), None, "{:.1f}"),),
        "The shipped fit has seen these rows; without their framework the error is 21 %.",
    ),
    layout("llama-13b", 70.57, 1, 1),
    layout("llama-30b", 61.98, 1, 4),
    layout("llama-65b", 59.62, 2, 4),
    Row(
        MADMAX,
        "How long is a step of LLaMA-65B on 2,048 A100 under full sharding? (measured by Meta: 380 tokens/s per chip)",
        "jaxscale predict --model llama-65b --gpu a100-80gb --n-gpus 2048 --global-batch 2048 --seq-len 2048 "
        "--set zero_stage=3 tp=1 pp=1 cp=1 micro_batch_size=1",
        (
            Figure("step, against the measurement [s]", at("predictions", 0, "predicted_step_time_s"), 2048 / 380.0),
            Figure("step, against MAD-Max's simulator [s]", at("predictions", 0, "predicted_step_time_s"), 4.553),
        ),
        "Meta's run had model parallelism; the simulator has full sharding alone.",
    ),
    *(
        Row(
            MADMAX,
            f"How long is a step of DLRM-A on 128 A100, dense layers {how}?",
            "jaxscale trace jaxscale.examples.recommendation_steps:square_dlrm --gpu a100-40gb --n-gpus 128 "
            f"--plan tables=table {degrees}".strip(),
            (
                Figure("step [ms]", lambda d: 1e3 * d["step_time_s"], told),
                Figure("the same without the update [ms]", undisturbed, told),
                Figure("all-to-all [ms]", lambda d: 1e3 * d["terms_s"]["expert_parallel"], 26.4),
            ),
            note,
        )
        for how, degrees, told, note in (
            ("copied", "", 54.0, ""),
            (
                "sharded",
                "shard=128",
                72.96,
                "The second line is nearer like for like: MAD-Max updates no weights, and hides a second look-up "
                "behind the network. Its all-to-all moves 92 MB per chip and pass at 7 GB/s, look-ups over shards "
                "and degree; here each pooled vector crosses once a way, 394 MB at the 25 GB/s of the network: the "
                "two nearly cancel. Its links have no latency. Its 2.24 times over full sharding is of DLRM-A with "
                "16 experts, which no trace describes.",
            ),
        )
    ),
    Row(
        PIPETTE,
        "Which order of 16 nodes has the fastest slowest link, where one ring joins all?",
        placed("--set pp=1 tp=8"),
        both_orders("slowest link of the ring", "ring", 18.97, 17.11),
    ),
    Row(
        PIPETTE,
        "And which has the fastest hops, where every node is a stage of a pipeline?",
        placed("--set pp=16"),
        both_orders("mean hop", "hop", 18.88, 18.40),
    ),
    Row(
        PIPETTE,
        "And what does placement bring the best plan?",
        placed(),
        (Figure("step in the order of the file, longer by [%]", percent("placement", "gain")),),
        "The matrix that Pipette ships with its code has no licence: the file here is drawn at random with its mean "
        "and scatter, and the published numbers are worked out on the matrix itself, the hops in the worst of its "
        "natural orders; that both agree says that the search is as good, not that a link was predicted. Speed-ups of "
        "1.1 to 1.5 are remembered of the paper, no error could be read: most of them is the choice of the plan.",
    ),
    Row(
        FUSION,
        "How much slower is GPT-2 1.5B on eight V100 over 500 Mbit/s with 4 bits than over 10 Gbit/s uncompressed?",
        f"{EIGHT.format('10gbit')}\n{EIGHT.format('500mbit')}",
        (
            Figure(
                "slower [%]",
                lambda d: (
                    100.0
                    * (
                        mode("pipeline", "tokens_per_s", table="modes")(d[0]) / mode("compressed", "tokens_per_s")(d[1])
                        - 1
                    )
                ),
                31.0,
                "{:.1f}",
                "points",
            ),
        ),
        "The batch (32 sequences) is assumed. Extra tokens of the mode are assumed too: 5 % at the fewest words.",
    ),
    Row(
        FUSION,
        "What does keeping 1 in 100 entries with their places (3 % of the words) bring over 500 Mbit/s?",
        f"{EIGHT.format('500mbit')} --mode compressed.least_words=0.03",
        (
            Figure(
                "pace over that of whole activations",
                lambda d: mode("compressed", "tokens_per_s")(d) / mode("pipeline", "tokens_per_s", table="modes")(d),
                (1.45, 9.39),
            ),
        ),
        "Published as a band over three testbeds of 48 GPUs, 8 Mbit/s to 10 Gbit/s; its tables could not be read.",
    ),
    Row(
        "Ravnest (arXiv 2401.01728) and asynchronous updates",
        "What do late gradients cost, and what at one update late (10e9 parameters, 2e11 tokens)?",
        LATE,
        (
            Figure("steps at 32 stages over one stage", at("steps", 2), 5.81),
            Figure("rise of the loss at one update late [nat]", at("rise"), (0.005, 0.2), "{:.3f}"),
        ),
        "Ravnest's paper has no table. The law is fitted to the first number (arXiv 2602.03515, second hand); the "
        "second is a check: 0.005 with Muon, more than 0.2 with AdamW (arXiv 2606.30634).",
    ),
    Row(
        "Ravnest (arXiv 2401.01728) and asynchronous updates",
        "Is a pipeline that never waits worth it on eight V100 over 10 Gbit/s?",
        EIGHT.format("10gbit"),
        (
            Figure(
                "pace over the synchronous pipeline",
                lambda d: mode("asynchronous", "tokens_per_s")(d) / mode("pipeline", "tokens_per_s", table="modes")(d),
            ),
            Figure("tokens over it", mode("asynchronous", "factor")),
        ),
    ),
    Row(
        SUBNETS,
        "What do parts of the network bring four sites over local updates of all of it?",
        FLEET.format("four_sites", "llama2-7b", 1024),
        (
            Figure("islands of the best set", lambda d: len(mode("subnetworks", "islands")(d)), None, "{:.0f}"),
            Figure(
                "pace over local updates",
                lambda d: (
                    mode("subnetworks", "tokens_per_s")(d) / mode("local-updates", "tokens_per_s", table="modes")(d)
                ),
                (1.31, 3.60),
            ),
            Figure("tokens over local updates", mode("subnetworks", "factor"), (1.06, 1.28)),
        ),
        "Published with four workers: 3.60 (CIFAR-10) and 1.31 times (ImageNet) at equal epochs. The tokens are those "
        "of ResIST on ImageNet, 1.06 at two and 1.28 at four workers; of language nothing is known.",
    ),
    Row(
        EDGE,
        "How much sooner do eight devices finish that share out parameters and bandwidth together?",
        PARTEL,
        (
            Figure("than with the best parameters at equal bandwidth [%]", at("load"), 46.0, "{:.1f}", "points"),
            Figure("than with the best bandwidth at equal parameters [%]", at("link"), 46.0, "{:.1f}", "points"),
            Figure("than with equal parameters and bandwidth [%]", at("equal"), None, "{:.1f}"),
        ),
        "Median of 40 draws of speeds and channels, each over a decade; published as 46 % against schemes that fix one "
        "of the two, in a setting that could not be read. Shares of work alone are those of `jaxscale islands`.",
    ),
    Row(
        "Local losses (Laskin et al., arXiv 2012.03837), synthetic labels (arXiv 2403.11204), decoupled sub-models",
        "What do parts without gradients or without any exchange bring two sites, synthetic labels at a stated 1.2?",
        FLEET.format("h100_and_a100", "llama2-7b", 1024) + " --mode synthetic-labels.factor=1.2",
        (
            Figure(
                "local losses: pace over the pipeline",
                lambda d: mode("local-losses", "tokens_per_s")(d) / mode("pipeline", "tokens_per_s", table="modes")(d),
            ),
            Figure("local losses: tokens over the pipeline", mode("local-losses", "factor")),
            Figure("synthetic labels: days", mode("synthetic-labels", "days")),
            Figure("sub-models: tokens/s", mode("sub-models", "tokens_per_s"), None, "{:,.0f}"),
        ),
        "The tokens of local losses follow from a test error 1.07 times as high at two parts (ResNets on CIFAR), taken "
        "for the reducible loss. Penalties of synthetic labels and of sub-models were not published: state them.",
    ),
]


@functools.cache
def answer(command: str) -> Any:
    """Document that a command prints."""
    if command.startswith("jaxscale "):
        run = [sys.executable, "-m", *command.split(), "--json", "--quiet"]
    else:
        run = [sys.executable, "-c", command]
    found = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{command}\n{found.stderr}")
    return json.loads(found.stdout)


def section(row: Row) -> str:
    """Question, command, figures and note of a row, as run now."""
    asked = row.command.splitlines()
    several = len(asked) > 1 and all(line.startswith("jaxscale ") for line in asked)
    document = [answer(line) for line in asked] if several else answer(row.command)
    lines = [f"**{row.question}**", ""]
    # Blocks of commands are not executed by the tests of the documentation: this script has run them.
    language = "bash" if row.command.startswith("jaxscale ") else "text"
    lines += [f"```{language}", row.command, "```", "", "| figure | published | here | error |", "|---|---|---|---|"]
    lines += [figure.row(document) for figure in row.figures]
    text = "\n".join([*lines, *(["", row.note] if row.note else [])])
    print(text, "\n", flush=True)
    return text


HEAD = """# Published systems

What do published systems of parallel training say, and what does jaxscale answer to the same question? Each answer is
what the command printed when `python scripts/seeds.py` made this page; no row stands without a run. *Error* is of ours
against the published number: relative, in points where both are per cent, in decades where both are powers of ten.
*None could be read*: the paper has no number for it, or its text was not at hand.
"""

OPEN = """## What no command answers

- **Data parallelism and sparsity (Lee et al., arXiv 2003.11316)**: the form is in `js.laws.fit_critical_batch`, which
  takes the sparsity of each run; the paper's figures could not be read, so that there is nothing to compare.
- **Adaptive elastic SGD (arXiv 2110.07029), CPU and GPU SGD (arXiv 2004.08771)**: both come to rest where all devices
  finish together, which is how `jaxscale islands` shares the batch; no number was published.
- **DANCE (arXiv 2107.07706)**: asks which part of the data, at which resolution, and which width of the network train
  best under a budget of energy: 25 to 77 % less. No command answers: the flop of a network at a resolution and a width
  are those of `jaxscale trace ... --set`, but no loss against resolution and kept share was published that a choice
  could rest on.
- **DistGNN (arXiv 2104.06700), graph networks on sockets (arXiv 2212.05009)**: ask for the time of an epoch on a graph
  that is cut by vertices: 3.7 times faster on a socket, which is the blocking of one kernel, and 97 times on 128. No
  command answers: a layer moves 2 (R - 1) words per vertex and feature at R copies of a vertex, and R of the graph of
  that run at 128 sockets was not published and follows from nothing but the graph; the catalogue has no sockets.
- **Survey of parallelisation (arXiv 2304.03589)**: no system, nothing to ask.
"""


def written() -> dict[str, str]:
    """Sections of the page as it is, by system."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = [part.partition("\n\n") for part in text.split("\n## ")[1:]]
    return {system: body.strip() for system, _, body in parts}


def main() -> None:
    """Write the page; with a word, the sections of the systems whose names have it."""
    word = sys.argv[1].lower() if len(sys.argv) > 1 else ""
    systems = list(dict.fromkeys(row.system for row in ROWS))
    for system in systems:
        if word in system.lower():
            body = "\n\n".join(section(row) for row in ROWS if row.system == system)
            kept = {**written(), system: body}
            parts = [f"## {name}\n\n{kept[name]}" for name in systems if name in kept]
            PAGE.write_text("\n\n".join([HEAD.strip(), *parts, OPEN]), encoding="utf-8")


if __name__ == "__main__":
    main()
