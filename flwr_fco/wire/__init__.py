"""All data exchanged between server and clients, and the only place that knows the keys of Flower's records.

Content without Flower: ``protocol`` (plan, downlink, uplink) and ``questions``. Writing and reading: ``downlink``,
``uplink``, ``client_state``, ``queries`` (questions and answers), ``model`` (under the user's names), ``metrics``,
``envelope`` (messages, the handshake, reports of missing data), ``arrays`` and ``keys``. ``flower`` makes records of
Flower's, and copies.

Server to client, one ``RecordDict``:

=====================  ============  ==========================================================================
``"arrays"``           ArrayRecord   the round's flat vectors, e.g. ``dual``; pass-through arrays as ``pass:NAME``
``"config"``           ConfigRecord  the user's ``train_config`` and ``server-round``
``"fco"``              ConfigRecord  ``plan`` (a hash), ``elapsed``, and ``client-lr`` where the method has one; once
                                     ``plan-header`` (JSON); ``work`` (JSON) where it is not the plan's; numbers of the
                                     method as ``number:NAME``; for a client with a memory ``epoch`` and ``accepted``
``"fco-plan"``         ArrayRecord   once: the plan's arrays (weights, groups), if it has any
``"fco-restored"``     ArrayRecord   the client's state, if it has lost it
=====================  ============  ==========================================================================

Client to server:

=====================  ============  ==========================================================================
``"arrays"``           ArrayRecord   ``increment`` (flat), or nothing when the plan or the state is missing;
                                     pass-through arrays as ``pass:NAME``
``"metrics"``          MetricRecord  ``num-examples``, ``local-steps``, ``elapsed`` (not after a minimisation), and what
                                     else the client reports; ``fco-schema``, a digest of the names of its columns and
                                     classes, if they have any; ``fco-units``, grades of the deviations of its columns,
                                     in the answer to the first message, which asks for them by
                                     ``number:fco-units``; or ``plan-missing``; or ``state-missing``
=====================  ============  ==========================================================================

A question (:mod:`flwr_fco.wire.questions`) has the vectors in ``"arrays"`` and in ``"fco-question"`` its ``kind``, the
``layout`` (JSON) and numbers as ``number:NAME``; its answer vectors in ``"arrays"``, and in ``"metrics"``
``num-examples``, ``fco-schema`` and the numbers. The answer to the question for names (``query.names``) has the names
in a ConfigRecord ``"fco-schema"``, ``columns`` and ``classes``.

A client with a memory keeps it in ``context.state``, in two phases: its memory after the last round that counted
(``"fco-committed"``), and its memory after the last round that it answered (``"fco-pending"``), which counts only if
the server says so in the next downlink (``"fco-stamps"`` holds the rounds of both, and the epoch).

The keys ``"arrays"`` and ``"config"`` are the strategy's ``arrayrecord_key`` and ``configrecord_key``. The round's
stamp is the message's ``group_id``.
"""
