"""The program itself, but a configuration may set the limits that are constants. For tests, as a script.

The tests of these limits would else take as long, or need as many clients, as the limits allow.
"""

import os
import sys

from acp_gateway.cli.main import main
from acp_gateway.config import schema

# The type of each field says how it is read.
vars(schema)["is_fixed"] = lambda _: False

if __name__ == "__main__":
    main(prog_name=os.path.basename(sys.argv[0]))
