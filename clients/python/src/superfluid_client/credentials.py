"""What opens a daemon's doors: the web listener's token, given or read from the file that the daemon writes anew at
every start; the unix socket's path."""

import os
import sys
from pathlib import Path

from superfluid_client.errors import Unauthorized


def default_token_file() -> Path:
    """``web-token`` in the sessions directory under ``$SUPERFLUID_HOME``, which is ``~/.superfluid`` if not set."""
    return _home() / "sessions" / "web-token"


def default_socket(token_file: str | os.PathLike[str] | None = None) -> Path:
    """The socket of the daemon that wrote ``token_file`` (default: the usual one), if it was started with no other: it
    lies beside the sessions directory, or where the daemon puts it if that path is too long for a socket."""
    home = _home() if token_file is None else Path(token_file).expanduser().absolute().parent.parent
    path = home / "superfluid.sock"
    if _is_short_enough(path):
        return path
    name = f"superfluid-{os.getuid()}.sock"
    moved = Path(os.environ.get("TMPDIR") or "/tmp") / name
    return moved if _is_short_enough(moved) else Path("/tmp") / name


def _home() -> Path:
    home = os.environ.get("SUPERFLUID_HOME", "").strip()
    return (Path(home) if home else Path("~/.superfluid")).expanduser()


def _is_short_enough(path: Path) -> bool:
    return len(os.fsencode(path)) < (104 if sys.platform == "darwin" else 108)


class TokenSource:
    """Hands out the token. The file is read when a token is first needed, and again when the daemon refuses it."""

    def __init__(self, token: str | None, token_file: str | os.PathLike[str] | None) -> None:
        """``token`` wins over ``token_file``; with neither it is the default file."""
        self._is_given = token is not None
        self._token = token
        self._file = Path(token_file).expanduser() if token_file is not None else default_token_file()

    def token(self) -> str:
        """Raises Unauthorized if there is no token to read."""
        token = self._token
        if token is None:
            token = self._token = self._read()
        return token

    def renewed(self, refused: str) -> bool:
        """Whether there is another token than the refused one. Raises Unauthorized if the file cannot be read."""
        if self._is_given:
            return False
        self._token = self._read()
        return self._token != refused

    def _read(self) -> str:
        try:
            return self._file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise Unauthorized(
                f"no token in {self._file}: is a server running with --web? ({_reason(error)})"
            ) from error


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
