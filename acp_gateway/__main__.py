"""`python -m acp_gateway` is `acp-gateway`."""

from acp_gateway.cli.main import main

if __name__ == "__main__":
    main()
