"""The keeper: a small process that ends attempts whose fence is over, whatever else works.

It holds, for every attempt that must not outlive its node's absence (`on_partition: stop_after`),
a deadline on the boot clock and where the attempt's processes are found. It needs neither the
agent nor the container engine to act, and goes on from its file after a restart.

Rules of this package:
1. The process (all but `client`) imports the standard library alone, and little of it: it lives on
   every host for as long as the host does.
2. A fence is held once it is on the disk; only then is it confirmed.
3. What is about to be ended is written down before the first signal, so that the end can be told
   truthfully by whoever finds it.
4. A fence is let go by the agent's word alone. Until then whatever turns up behind one that is
   over is ended too: an engine that hung may start a container late.
"""
