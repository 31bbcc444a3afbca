"""`make bench`: every benchmark in its quick form, as one table."""

from benchmarks.engine import engine_ratios
from benchmarks.engine_peers import peer_ratios as engine_peer_ratios
from benchmarks.http import http_ratios
from benchmarks.report import print_table
from benchmarks.vault import vault_ratios
from benchmarks.vault_peers import peer_ratios, stream_ratios
from benchmarks.vault_writes import log_rows, print_logged, print_writes, write_rows
from benchmarks.writers import writer_ratios

if __name__ == "__main__":
    print_table("Engine, in process", engine_ratios())
    print_table("Engine beside others", engine_peer_ratios())
    print_table("Vault", vault_ratios())
    print_writes(write_rows())
    print_logged(log_rows())
    print_table("Vault against other stores", peer_ratios())
    print_table("Vault, shuffled", stream_ratios())
    print_table("HTTP", http_ratios())
    print_table("Independent writers", writer_ratios(calls=5))
