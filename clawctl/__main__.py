from clawctl.cli import main

main()
