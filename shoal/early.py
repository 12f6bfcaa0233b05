"""What a script does before it imports JAX: ``if __name__ == "__main__": import shoal.early``.

Ctrl-C ends the process at once until a training handles it: inside a callback of JAX's garbage collector Python would
drop the interrupt. A standard stream that is closed becomes ``/dev/null``, so that no record gets its number.
"""

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
while (number := os.open(os.devnull, os.O_RDWR)) < 3:
    pass
os.close(number)
