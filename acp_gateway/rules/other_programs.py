"""Finds the words of a command by which one program runs another, or code that its arguments hold.

A rule for `git fetch …` is meant for fetching, and `git fetch --upload-pack=X` runs X. So a rule that allows has to
name such words itself: what stands for any words never stands for these. The tables follow the published lists of
programs that lead out of a restricted shell (GTFOBins), and err on the side of asking.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from acp_gateway.rules.words import table

_RUNNERS: Final = table(
    """
    env sudo doas su runuser pkexec setpriv capsh xargs parallel nice ionice renice chrt taskset timeout nohup setsid
    stdbuf strace ltrace watch chroot unshare nsenter flock exec eval command builtin source . trap busybox toybox
    entr expect unbuffer script at batch crontab firejail bwrap proxychains torsocks faketime cpulimit caffeinate arch
    setarch linux open xdg-open start-stop-daemon systemd-run systemd-inhibit dbus-launch dbus-run-session xvfb-run
    rlwrap choom prlimit run-parts hyperfine valgrind perf gdb lldb ssh-agent daemon daemonize screen tmux launchctl
    osascript npx uvx pipx bunx direnv mise asdf dotenv nix-shell fakeroot numactl gosu su-exec tini dumb-init sg
    newgrp flatpak-spawn toolbox distrobox wsl mpirun mpiexec srun sbatch torchrun accelerate sh bash dash ash zsh ksh
    mksh fish csh tcsh rbash yash elvish nu pwsh xonsh python pypy ipython node nodejs deno bun perl ruby irb php lua
    luajit rscript julia tclsh wish guile racket sbcl elixir iex erl escript groovy scala java kotlin swift jshell
    runghc octave matlab r tsx ts-node
    """
)
"""Programs whose arguments name what is run."""

_WHOLE: Final = table(
    """
    awk gawk mawk nawk sed gsed ed ex vi vim nvim view emacs nano less more most man info ssh scp sftp mosh telnet nc
    ncat socat rsh ftp lftp psql mysql mariadb sqlite mongosh redis-cli dc bc m4 gnuplot tcpdump nmap openssl cc gcc
    g++ clang as ld tar bsdtar gtar cpio rsync zip unzip split csplit ctags cmake ninja make gmake just gradle mvn ant
    rake latex pdflatex xelatex lualatex tex ip mount umount systemctl journalctl service apt apt-get dpkg rpm yum dnf
    pacman apk snap flatpak brew ansible ansible-playbook vagrant virsh rclone svn hg bzr jj pandoc ffmpeg convert
    magick curl wget aria2c mapfile readarray compgen complete bind enable dd tee install ln rm rmdir mv cp chmod
    chown chgrp setfacl kill pkill killall shred truncate mkfs fdisk parted shutdown reboot useradd usermod passwd
    visudo iptables
    """
)
"""Programs that run something or write anywhere in more ways than can be listed: each word has to be named."""

_WITH_SUBCOMMANDS: Final = table(
    """
    git npm pnpm yarn docker podman kubectl oc helm cargo go pip uv poetry pipenv pdm hatch rye conda mamba bundle gem
    composer gh glab aws gcloud az terraform tofu pulumi nix dotnet flutter dart rustup pre-commit
    """
)
"""Programs whose second word says what they do."""

_RUNNING: Final = table(
    """
    run run-script exec x dlx shell bisect submodule foreach filter-branch difftool mergetool config daemon send-email
    archive instaweb maintenance hook alias extension plugin develop debug attach cp ssh compose generate tool init
    create console rebase upload-pack receive-pack remote-ext fast-import set env
    """
)
"""Second words of these with which they run what further words or settings name."""

_RUNS: Final = re.compile(
    "exec|command|cmd|pack|pager|shell|rsh|filter|program|script|eval|edit|askpass|config|hook|wrapper|plugin|preload|"
    "proxy|ext-diff|textconv|open-files|helper|template|output|require|import|load|rcfile|startup|receive|git-dir|"
    "work-tree|namespace|tool|compile|runner|driver|backend|rootdir|confcutdir|basetemp|pdb|browser|overlay|prefix|"
    "^-*pre$|-bin$|^-(?:ok|okdir|delete|fls|fprint.*|files0-from)$"
)
"""Found in the names of options that run a program or code, read settings, or write elsewhere."""

_OF_GIT: Final = ("upload-pack", "receive-pack", "exec", "ext-diff", "textconv", "open-files-in-pager", "output")
"""Options of git, which takes the beginning of a name for the whole."""

_LETTERS: Final[Mapping[str, str]] = {
    program: letters
    for program, _, letters in (
        each.partition(":")
        for each in table(
            """
            git:cCuxoO cargo:CZ go:C npm:Cw docker:vH podman:v kubectl:f pytest:cpo tox:cxe eslint:cf jest:c mocha:r
            rspec:rI rubocop:cr fd:xX fdfind:xX sort:oT jq:fL
            """
        )
    )
}
"""Short options of programs that do it."""

_VERSION: Final = re.compile("[-.0-9]+$")
_PROGRAM: Final = re.compile("[A-Za-z_./][A-Za-z0-9_./-]*")


def find_other_programs(words: Sequence[str]) -> frozenset[int]:
    """Return the places of the words that a rule has to name, in order to allow the command."""
    everything = frozenset(range(len(words)))
    program = name_of(words[0])
    if program in _WHOLE:
        return everything
    if program in _RUNNERS:
        return _of_inner(words, 1)
    found = {at for at, word in enumerate(words) if at and _runs(program, word)}
    if program in _WITH_SUBCOMMANDS and len(words) > 1:
        if not _PROGRAM.fullmatch(words[1]):
            return everything
        found |= _of_inner(words, 2) if words[1] in _RUNNING else {1}
    return frozenset(found)


def name_of(word: str) -> str:
    """Return the name of a program as the tables have it: without its folder and version, and in lower case, as some
    file systems do not tell cases apart."""
    base = word.rpartition("/")[2].casefold()
    return _VERSION.sub("", base) or base


def _of_inner(words: Sequence[str], start: int) -> frozenset[int]:
    """Return the places for a command that runs another, which begins at a word: all up to that word, and its own.

    With anything else in that place, such as an option, it is not certain what is run.
    """
    if words[1:2] == ("-m",) and start == 1:
        start = 2  # A module of Python.
    if start >= len(words) or not _PROGRAM.fullmatch(words[start]):
        return frozenset(range(len(words)))
    inner = find_other_programs(words[start:])
    return frozenset(range(start + 1)) | {start + at for at in inner}


def _runs(program: str, word: str) -> bool:
    """Return True for an argument of a program that runs another, or may."""
    if not word.startswith("-"):
        # A file of further arguments; a helper of git's for an address.
        return word.startswith("@") or (program == "git" and "::" in word)
    name = word.partition("=")[0].casefold()
    if program == "git" and len(name) > 2 and any(it.startswith(name[2:]) for it in _OF_GIT):
        return True
    letters = "" if word.startswith("--") else _LETTERS.get(program, "")
    return _RUNS.search(name) is not None or any(letter in letters for letter in word[1:])
