"""The server, case by case: `scripts/bench serve [--case NAME] [--quick] [--json FILE]`; without --case all of them."""

import importlib

from scripts.benchmarks.table import make_parser, report

_CASES = {
    "vllm-cpu": "serve_vllm",
    "null-upstream": "serve_null",
    "agent-prompts": "serve_prompts",
    "swap": "serve_swap",
    "fuzz": "serve_fuzz",
    "vllm-matrix": "serve_matrix",
    "hand-over": "serve_handover",
    "vllm-pool": "serve_pool",
}


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--case", choices=[*_CASES], action="append", help="only this one; may be given several times")
    parser.add_argument("--setting", action="append", help="only this one of vllm-matrix; may be given several times")
    given = parser.parse_args()
    if given.setting and given.case != ["vllm-matrix"]:
        parser.error("--setting needs --case vllm-matrix")
    rows = []
    for case in given.case or _CASES:
        more = {"only": given.setting} if given.setting else {}
        rows += importlib.import_module(f"scripts.benchmarks.{_CASES[case]}").run(given.quick, **more)
    report("serve", rows, given.json)


if __name__ == "__main__":
    main()
