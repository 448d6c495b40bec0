"""The token of the web listener: given, or read from the file that the daemon writes anew at every start."""

import os
from pathlib import Path

from superfluid_client.errors import Unauthorized


def default_token_file() -> Path:
    """``web-token`` in the sessions directory under ``$SUPERFLUID_HOME``, which is ``~/.superfluid`` if not set."""
    home = os.environ.get("SUPERFLUID_HOME", "").strip()
    return (Path(home) if home else Path("~/.superfluid")).expanduser() / "sessions" / "web-token"


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
