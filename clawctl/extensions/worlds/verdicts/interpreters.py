"""Programs that run what they are given, for both sides of a verdict. Standard library only; read in the sandbox of the tests."""

# By name: letters of options that a program's text follows, a file of it, and another value; and long options.
OPTIONS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    **dict.fromkeys(("bash", "sh", "dash"), ("c", "", "oO", ())),
    "python3": ("c", "", "WXm", ()), "node": ("ep", "", "r", ("--eval", "--print")), "perl": ("eE", "", "", ()),
    "ruby": ("e", "", "rI", ()), "php": ("r", "f", "d", ()), "lua": ("e", "", "l", ()), "Rscript": ("e", "", "", ()),
    "awk": ("", "f", "vF", ()), "sed": ("e", "f", "l", ("--expression",)), "bc": ("e", "", "", ()), "dc": ("e", "f", "", ()),
    "jq": ("", "f", "L", ("--from-file",)),
}  # fmt: skip
SHELLS, FILTERS = ("bash", "sh", "dash"), ("awk", "gawk", "mawk", "sed", "jq")
SAME = {"gawk": "awk", "mawk": "awk", "python": "python3"}
RUNNERS = ("timeout", "env", "nohup", "nice", "setsid", "stdbuf", "xargs", "time", "find", "sudo")
BUILDERS = (
    "make", "cmake", "gcc", "g++", "cc", "c++", "clang", "cargo", "rustc", "go", "npm", "npx", "java", "javac", "tcc", "ghc",
)  # fmt: skip
OTHERS = ("node", "perl", "ruby", "php", "lua", "Rscript", "tclsh", "guile", "julia", "ocaml", "racket", "sbcl", "octave", "swipl")
EDITORS = ("ed", "ex", "vi", "vim", "m4", "gdb", "expect", "sqlite3", "bc", "dc", "expr")
