"""Starts vLLM's server as the command `vllm serve` does, with as many API servers as `--api-server-count` says.

`vllm.entrypoints.openai.api_server` starts one whatever the count, and vLLM's own command needs a package named vllm, which a CPU
build is not.
"""


def main() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    configure_logging_from_args(arguments)
    validate_parsed_serve_args(arguments)
    ServeSubcommand.cmd(arguments)


if __name__ == "__main__":  # the API servers import this module again
    main()
