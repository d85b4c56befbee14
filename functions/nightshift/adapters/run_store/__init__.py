"""DynamoDB: one table, one item a fact.

========================  ==========================  ====================================================
pk                        sk                          item
========================  ==========================  ====================================================
``RUN#<run_id>``          ``RUN``                     the run record, with token and index keys beside it
``RUN#<run_id>``          ``ATTEMPT#<0000n>``         one attempt
``RUN#<run_id>``          ``SIGNAL#<counter>``        one signal
``RUN#<run_id>``          ``AUDIT#<time>#<random>``   one line of the audit trail
``RUN#<run_id>``          ``REJECTED#<digest>``       a refused request that named this run
``POOL#<pool>``           ``LEASE``                   who holds the pool
``CAPACITY#<cluster>``    a moment                    what instances HyperPod had from then on
========================  ==========================  ====================================================
"""

from __future__ import annotations

from nightshift.adapters.run_store.attempts import AttemptItems
from nightshift.adapters.run_store.capacity import CapacityItems
from nightshift.adapters.run_store.leases import LeaseItems
from nightshift.adapters.run_store.listings import ListItems
from nightshift.adapters.run_store.runs import RunRecords
from nightshift.adapters.run_store.signals import SignalItems
from nightshift.adapters.run_store.trail import TrailItems

__all__ = ["DynamoRunStore"]


class DynamoRunStore(RunRecords, SignalItems, AttemptItems, TrailItems, LeaseItems, ListItems, CapacityItems):
    """Implements ``steps.ports.RunStore``, ``Listings`` and ``CapacityLog``. ``table`` is a boto3 DynamoDB Table; its
    client is used for transactions and batches."""
