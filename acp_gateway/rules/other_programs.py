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
    env sudo doas pkexec setpriv xargs nice ionice chrt nohup setsid stdbuf strace ltrace exec command builtin source .
    busybox toybox unbuffer proxychains torsocks torify caffeinate arch xvfb-run rlwrap npx uvx bunx fakeroot tini
    dumb-init sh bash dash ash zsh ksh mksh fish csh tcsh rbash yash elvish nu pwsh xonsh python pypy ipython node
    nodejs perl ruby irb php lua luajit rscript julia tclsh wish guile racket sbcl elixir iex escript groovy scala java
    kotlin jshell runghc octave r tsx ts-node timeit cprofile profile pdb runpy trace
    """
)
"""Programs whose first argument is what is run, a program or a file, and whose further ones are for that."""

_WHOLE: Final = table(
    """
    su runuser capsh parallel renice timeout taskset watch chroot unshare nsenter flock eval trap entr expect script at
    batch crontab firejail bwrap faketime cpulimit setarch linux open xdg-open start-stop-daemon systemd-run
    systemd-inhibit dbus-launch dbus-run-session choom prlimit run-parts hyperfine valgrind perf gdb lldb ssh-agent
    daemon daemonize screen tmux tmate launchctl osascript direnv mise asdf dotenv nix-shell numactl gosu su-exec sg
    newgrp flatpak-spawn toolbox distrobox wsl mpirun mpiexec srun sbatch torchrun accelerate deno erl matlab
    awk gawk mawk nawk sed gsed ed ex vi vim nvim rvim rview vimdiff view emacs nano less more most man info nroff groff
    troff ssh ssh-keygen ssh-copy-id sshpass scp sftp mosh telnet nc ncat socat rsh ftp lftp w3m links mail psql mysql
    mariadb sqlite mongosh redis-cli dc bc m4 gnuplot tcpdump tshark nmap openssl openvpn exiftool cc gcc g++ clang ghc
    as ld nasm tar bsdtar gtar cpio pax ar rsync zip unzip split csplit uniq xxd uudecode gzip bzip2 xz ctags msgfilter
    cmake ctest ninja make gmake just task mage invoke inv fab doit gradle gradlew mvn mvnw ant bazel bazelisk buck
    pants meson scons rake latex latexmk pdflatex xelatex lualatex tex ip mount umount sysctl systemctl loginctl busctl
    journalctl service apt apt-get dpkg rpm yum dnf zypper pacman apk snap flatpak brew puppet ansible ansible-playbook
    vagrant virsh restic rclone svn hg bzr jj pandoc ffmpeg convert magick curl wget aria2c mapfile readarray compgen
    complete bind enable dd tee install ln rm rmdir mv cp chmod chown chgrp setfacl kill pkill killall shred truncate
    mkfs fdisk parted shutdown reboot useradd usermod passwd visudo iptables
    """
)
"""Programs that run something or write anywhere in more ways than can be listed: each word has to be named."""

_OF_SHELLS: Final = table("printf test [ [[ let read unset wait getopts hash set shopt zmodload zcompile fc history")
"""Words of shells that evaluate their arguments, as `printf -v 'a[$(id)]'` does, or change what others mean."""

_WITH_SUBCOMMANDS: Final = table(
    """
    git npm pnpm yarn bun docker podman nerdctl kubectl oc helm cargo go swift pip pipx uv poetry pipenv pdm hatch rye
    conda mamba bundle gem composer gh glab aws gcloud az terraform tofu pulumi nix dotnet flutter dart rustup
    pre-commit coverage turbo nx lerna
    """
)
"""Programs whose second word says what they do."""

_RUN: Final = table("run run-script exec x dlx")
"""Second words of these before a program or a script."""

_ELSEWHERE: Final = table("docker podman nerdctl kubectl oc")
"""Programs in whose place for a program is the name of a container."""

_RUNNING: Final = _RUN | table(
    """
    shell bisect submodule foreach for-each-repo filter-branch filter-repo difftool mergetool config credential daemon
    send-email archive instaweb maintenance hook help alias extension plugin develop debug attach cp ssh compose
    container service stack generate tool init create console rebase upload-pack receive-pack remote-ext fast-import
    set env svn p4
    """
)
"""Second words of these with which they run what further words or settings name."""

_RUNS: Final = re.compile(
    "exec|command|cmd|pack|pager|shell|rsh|filter|program|script|eval|edit|askpass|config|hook|wrapper|plugin|load|"
    "proxy|ext-diff|textconv|open-files|helper|template|output|require|import|startup|receive|git-dir|work-tree|"
    "namespace|tool|compile|runner|render|driver|backend|rootdir|rulesdir|confcutdir|basetemp|pdb|browser|viewer|"
    "overlay|prefix|adapter|bootstrap|custom|environment|flags|format+er|launcher|linker|node-opt|parser|pastebin|"
    "preset|printer|processor|propert|reporter|resolver|run.under|sequencer|serializer|settings|globalsetup|setupfiles|"
    "transform|chdir|cwd|working-?dir|^--?dir(?:ectory)?$|^-*pre$|-bin$|(?<!pro)file$|"
    "^-(?:ok|okdir|delete|fls|fprint.*|files0-from)$"
)
"""Found in the names of options that run a program or code, read settings, or write elsewhere."""

_LAST_PARTS: Final = (
    *("askpass", "backend", "command", "config", "driver", "editor", "executable", "filter", "hook", "import"),
    *("output", "pager", "plugins", "program", "proxy", "rcfile", "require", "shell", "template", "wrapper"),
)
"""Last parts of such names. Most programs take the beginning of a name for the whole."""

_NAMES: Final[Mapping[str, frozenset[str]]] = {
    "git": table("upload-pack receive-pack exec ext-diff textconv open-files-in-pager output config"),
    "sort": table("compress-program files0-from"),
    "npm": table("userconfig globalconfig prefix script-shell node-options git call init-module viewer"),
    "mypy": table("python-executable install-types"),
    "pylint": table("init-hook load-plugins"),
    "eslint": table("format"),
}
"""Further names of options of programs that take their beginnings, too."""

_LETTERS: Final[Mapping[str, str]] = {
    program: letters
    for program, _, letters in (
        each.partition(":")
        for each in table(
            """
            git:cCuxoO cargo:CZ go:C npm:Cwc pnpm:Cc bun:cr docker:vH podman:v kubectl:f gh:cu dotnet:apls pytest:cpo
            tox:cxe nox:f pre-commit:c eslint:cf jest:c vitest:cr mocha:rRu rspec:rIfO rubocop:cr phpunit:cd phpstan:ac
            webpack:cr vite:c rollup:cp gulp:f fd:xX fdfind:xX sort:oT shuf:o tree:oR iconv:o jq:fL
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
    if program in _WHOLE or program in _OF_SHELLS:
        return everything
    if program in _RUNNERS:
        return _of_inner(words, 1)
    found = {at for at, word in enumerate(words) if at and _runs(program, word)}
    if program in _WITH_SUBCOMMANDS and len(words) > 1:
        if not _PROGRAM.fullmatch(words[1]):
            return everything
        if words[1] in _RUNNING and (words[1] not in _RUN or program in _ELSEWHERE):
            return everything
        found |= _of_inner(words, 2) if words[1] in _RUN else {1}
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
    if words[start : start + 1] == ("-m",):
        start += 1  # A module of Python.
    if start >= len(words) or not _PROGRAM.fullmatch(words[start]):
        return frozenset(range(len(words)))
    is_script = start > 1 and words[start] in _OF_SHELLS  # Such as `npm run test`.
    inner = frozenset[int]() if is_script else find_other_programs(words[start:])
    return frozenset(range(start + 1)) | {start + at for at in inner}


def _runs(program: str, word: str) -> bool:
    """Return True for an argument of a program that runs another, or may."""
    if not word.startswith("-"):
        # A file of further arguments; a helper of git's for an address.
        return word.startswith("@") or (program == "git" and "::" in word)
    name = word.partition("=")[0].casefold()
    if word.startswith("--"):
        last, given = name.rpartition("-")[2], name.removeprefix("--")
        begun = [it for it in _LAST_PARTS if last and it.startswith(last)]
        begun += [it for it in _NAMES.get(program, ()) if given and it.startswith(given)]
        return bool(begun) or _RUNS.search(name) is not None
    letters = _LETTERS.get(program, "")
    return _RUNS.search(name) is not None or any(letter in letters for letter in word[1:])
