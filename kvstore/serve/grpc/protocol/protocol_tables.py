"""Protocol tables: the enumerations, messages and calls of `apache.rocketmq.v2`, as facts.

The idea: names and numbers of a protocol are facts, and two texts hold them in the order of their
numbers. `wire` makes the classes of them. A line of `MESSAGES` is a message, and its fields follow:

    Message: 1 topic Resource, 2 user_properties map, 3 system_properties SystemProperties

A field is its number, its name and its type: a scalar, `map` (text to text), an enumeration or a
message; behind it may stand `*` (repeated), `?` (its absence can be seen) or `|name` (one of the
union `name`). `timestamp` and `duration` are protobuf's own.

Invariants: nothing is here that the protocol hasn't, and tests/serve/grpc/test_wire.py holds every
line against the stubs of RocketMQ's Python client.
"""

from __future__ import annotations

from typing import Final

PACKAGE: Final = "apache.rocketmq.v2"

ENUMS: Final = """
TransactionResolution: TRANSACTION_RESOLUTION_UNSPECIFIED 0, COMMIT 1, ROLLBACK 2
TransactionSource: SOURCE_UNSPECIFIED 0, SOURCE_CLIENT 1, SOURCE_SERVER_CHECK 2
Permission: PERMISSION_UNSPECIFIED 0, NONE 1, READ 2, WRITE 3, READ_WRITE 4
FilterType: FILTER_TYPE_UNSPECIFIED 0, TAG 1, SQL 2
AddressScheme: ADDRESS_SCHEME_UNSPECIFIED 0, IPv4 1, IPv6 2, DOMAIN_NAME 3
MessageType: MESSAGE_TYPE_UNSPECIFIED 0, NORMAL 1, FIFO 2, DELAY 3, TRANSACTION 4, LITE 5,
    PRIORITY 6
DigestType: DIGEST_TYPE_UNSPECIFIED 0, CRC32 1, MD5 2, SHA1 3
ClientType: CLIENT_TYPE_UNSPECIFIED 0, PRODUCER 1, PUSH_CONSUMER 2, SIMPLE_CONSUMER 3,
    PULL_CONSUMER 4, LITE_PUSH_CONSUMER 5, LITE_SIMPLE_CONSUMER 6
Encoding: ENCODING_UNSPECIFIED 0, IDENTITY 1, GZIP 2
Code: CODE_UNSPECIFIED 0, OK 20000, MULTIPLE_RESULTS 30000, BAD_REQUEST 40000,
    ILLEGAL_ACCESS_POINT 40001, ILLEGAL_TOPIC 40002, ILLEGAL_CONSUMER_GROUP 40003,
    ILLEGAL_MESSAGE_TAG 40004, ILLEGAL_MESSAGE_KEY 40005, ILLEGAL_MESSAGE_GROUP 40006,
    ILLEGAL_MESSAGE_PROPERTY_KEY 40007, INVALID_TRANSACTION_ID 40008, ILLEGAL_MESSAGE_ID 40009,
    ILLEGAL_FILTER_EXPRESSION 40010, ILLEGAL_INVISIBLE_TIME 40011, ILLEGAL_DELIVERY_TIME 40012,
    INVALID_RECEIPT_HANDLE 40013, MESSAGE_PROPERTY_CONFLICT_WITH_TYPE 40014,
    UNRECOGNIZED_CLIENT_TYPE 40015, MESSAGE_CORRUPTED 40016, CLIENT_ID_REQUIRED 40017,
    ILLEGAL_POLLING_TIME 40018, ILLEGAL_OFFSET 40019, ILLEGAL_LITE_TOPIC 40020, UNAUTHORIZED 40100,
    PAYMENT_REQUIRED 40200, FORBIDDEN 40300, NOT_FOUND 40400, MESSAGE_NOT_FOUND 40401,
    TOPIC_NOT_FOUND 40402, CONSUMER_GROUP_NOT_FOUND 40403, OFFSET_NOT_FOUND 40404,
    REQUEST_TIMEOUT 40800, PAYLOAD_TOO_LARGE 41300, MESSAGE_BODY_TOO_LARGE 41301,
    MESSAGE_BODY_EMPTY 41302, PRECONDITION_FAILED 42800, TOO_MANY_REQUESTS 42900,
    LITE_TOPIC_QUOTA_EXCEEDED 42901, LITE_SUBSCRIPTION_QUOTA_EXCEEDED 42902,
    REQUEST_HEADER_FIELDS_TOO_LARGE 43100, MESSAGE_PROPERTIES_TOO_LARGE 43101, INTERNAL_ERROR 50000,
    INTERNAL_SERVER_ERROR 50001, HA_NOT_AVAILABLE 50002, NOT_IMPLEMENTED 50100, PROXY_TIMEOUT 50400,
    MASTER_PERSISTENCE_TIMEOUT 50401, SLAVE_PERSISTENCE_TIMEOUT 50402, UNSUPPORTED 50500,
    VERSION_UNSUPPORTED 50501, VERIFY_FIFO_MESSAGE_UNSUPPORTED 50502,
    FAILED_TO_CONSUME_MESSAGE 60000
Language: LANGUAGE_UNSPECIFIED 0, JAVA 1, CPP 2, DOT_NET 3, GOLANG 4, RUST 5, PYTHON 6, PHP 7,
    NODE_JS 8, RUBY 9, OBJECTIVE_C 10, DART 11, KOTLIN 12
LiteSubscriptionAction: PARTIAL_ADD 0, PARTIAL_REMOVE 1, COMPLETE_ADD 2, COMPLETE_REMOVE 3
QueryOffsetPolicy: BEGINNING 0, END 1, TIMESTAMP 2
OffsetOption.Policy: LAST 0, MIN 1, MAX 2
ChangeLogLevelRequest.Level: TRACE 0, DEBUG 1, INFO 2, WARN 3, ERROR 4
"""

MESSAGES: Final = """
Status: 1 code Code, 2 message string
Resource: 1 resource_namespace string, 2 name string
Address: 1 host string, 2 port int32
Endpoints: 1 scheme AddressScheme, 2 addresses Address *
FilterExpression: 1 type FilterType, 2 expression string
ExponentialBackoff: 1 initial duration, 2 max duration, 3 multiplier float
CustomizedBackoff: 1 next duration *
RetryPolicy: 1 max_attempts int32, 2 exponential_backoff ExponentialBackoff |strategy,
    3 customized_backoff CustomizedBackoff |strategy
SubscriptionEntry: 1 topic Resource, 2 expression FilterExpression
Broker: 1 name string, 2 id int32, 3 endpoints Endpoints
MessageQueue: 1 topic Resource, 2 id int32, 3 permission Permission, 4 broker Broker,
    5 accept_message_types MessageType *
Assignment: 1 message_queue MessageQueue
Digest: 1 type DigestType, 2 checksum string
DeadLetterQueue: 1 topic string, 2 message_id string
SystemProperties: 1 tag string ?, 2 keys string *, 3 message_id string, 4 body_digest Digest,
    5 body_encoding Encoding, 6 message_type MessageType, 7 born_timestamp timestamp,
    8 born_host string, 9 store_timestamp timestamp ?, 10 store_host string,
    11 delivery_timestamp timestamp ?, 12 receipt_handle string ?, 13 queue_id int32,
    14 queue_offset int64 ?, 15 invisible_duration duration ?, 16 delivery_attempt int32 ?,
    17 message_group string ?, 18 trace_context string ?,
    19 orphaned_transaction_recovery_duration duration ?, 20 dead_letter_queue DeadLetterQueue ?,
    21 lite_topic string ?, 22 priority int32 ?
Message: 1 topic Resource, 2 user_properties map, 3 system_properties SystemProperties, 4 body bytes
UA: 1 language Language, 2 version string, 3 platform string, 4 hostname string
Publishing: 1 topics Resource *, 2 max_body_size int32, 3 validate_message_type bool
Subscription: 1 group Resource ?, 2 subscriptions SubscriptionEntry *, 3 fifo bool ?,
    4 receive_batch_size int32 ?, 5 long_polling_timeout duration ?,
    6 lite_subscription_quota int32 ?, 7 max_lite_topic_size int32 ?
Metric: 1 on bool, 2 endpoints Endpoints ?
Settings: 1 client_type ClientType ?, 2 access_point Endpoints ?, 3 backoff_policy RetryPolicy ?,
    4 request_timeout duration ?, 5 publishing Publishing |pub_sub,
    6 subscription Subscription |pub_sub, 7 user_agent UA, 8 metric Metric
OffsetOption: 1 policy OffsetOption.Policy |offset_type, 2 offset int64 |offset_type,
    3 tail_n int64 |offset_type, 4 timestamp int64 |offset_type

QueryRouteRequest: 1 topic Resource, 2 endpoints Endpoints
QueryRouteResponse: 1 status Status, 2 message_queues MessageQueue *
SendMessageRequest: 1 messages Message *
SendResultEntry: 1 status Status, 2 message_id string, 3 transaction_id string, 4 offset int64,
    5 recall_handle string
SendMessageResponse: 1 status Status, 2 entries SendResultEntry *
QueryAssignmentRequest: 1 topic Resource, 2 group Resource, 3 endpoints Endpoints
QueryAssignmentResponse: 1 status Status, 2 assignments Assignment *
ReceiveMessageRequest: 1 group Resource, 2 message_queue MessageQueue,
    3 filter_expression FilterExpression, 4 batch_size int32, 5 invisible_duration duration ?,
    6 auto_renew bool, 7 long_polling_timeout duration ?, 8 attempt_id string ?
ReceiveMessageResponse: 1 status Status |content, 2 message Message |content,
    3 delivery_timestamp timestamp |content
AckMessageEntry: 1 message_id string, 2 receipt_handle string, 3 lite_topic string ?
AckMessageRequest: 1 group Resource, 2 topic Resource, 3 entries AckMessageEntry *
AckMessageResultEntry: 1 message_id string, 2 receipt_handle string, 3 status Status
AckMessageResponse: 1 status Status, 2 entries AckMessageResultEntry *
ForwardMessageToDeadLetterQueueRequest: 1 group Resource, 2 topic Resource, 3 receipt_handle string,
    4 message_id string, 5 delivery_attempt int32, 6 max_delivery_attempts int32,
    7 lite_topic string ?
ForwardMessageToDeadLetterQueueResponse: 1 status Status
HeartbeatRequest: 1 group Resource ?, 2 client_type ClientType
HeartbeatResponse: 1 status Status
EndTransactionRequest: 1 topic Resource, 2 message_id string, 3 transaction_id string,
    4 resolution TransactionResolution, 5 source TransactionSource, 6 trace_context string
EndTransactionResponse: 1 status Status
PrintThreadStackTraceCommand: 1 nonce string
ReconnectEndpointsCommand: 1 nonce string
ThreadStackTrace: 1 nonce string, 2 thread_stack_trace string ?
VerifyMessageCommand: 1 nonce string, 2 message Message
VerifyMessageResult: 1 nonce string
RecoverOrphanedTransactionCommand: 1 message Message, 2 transaction_id string
NotifyUnsubscribeLiteCommand: 1 lite_topic string
TelemetryCommand: 1 status Status ?, 2 settings Settings |command,
    3 thread_stack_trace ThreadStackTrace |command,
    4 verify_message_result VerifyMessageResult |command,
    5 recover_orphaned_transaction_command RecoverOrphanedTransactionCommand |command,
    6 print_thread_stack_trace_command PrintThreadStackTraceCommand |command,
    7 verify_message_command VerifyMessageCommand |command,
    8 reconnect_endpoints_command ReconnectEndpointsCommand |command,
    9 notify_unsubscribe_lite_command NotifyUnsubscribeLiteCommand |command
NotifyClientTerminationRequest: 1 group Resource ?
NotifyClientTerminationResponse: 1 status Status
ChangeInvisibleDurationRequest: 1 group Resource, 2 topic Resource, 3 receipt_handle string,
    4 invisible_duration duration, 5 message_id string, 6 lite_topic string ?, 7 suspend bool ?
ChangeInvisibleDurationResponse: 1 status Status, 2 receipt_handle string
PullMessageRequest: 1 group Resource, 2 message_queue MessageQueue, 3 offset int64,
    4 batch_size int32, 5 filter_expression FilterExpression, 6 long_polling_timeout duration
PullMessageResponse: 1 status Status |content, 2 message Message |content,
    3 next_offset int64 |content
UpdateOffsetRequest: 1 group Resource, 2 message_queue MessageQueue, 3 offset int64
UpdateOffsetResponse: 1 status Status
GetOffsetRequest: 1 group Resource, 2 message_queue MessageQueue
GetOffsetResponse: 1 status Status, 2 offset int64
QueryOffsetRequest: 1 message_queue MessageQueue, 2 query_offset_policy QueryOffsetPolicy,
    3 timestamp timestamp ?
QueryOffsetResponse: 1 status Status, 2 offset int64
RecallMessageRequest: 1 topic Resource, 2 recall_handle string
RecallMessageResponse: 1 status Status, 2 message_id string
SyncLiteSubscriptionRequest: 1 action LiteSubscriptionAction, 2 topic Resource, 3 group Resource,
    4 lite_topic_set string *, 5 version int64 ?, 6 offset_option OffsetOption ?
SyncLiteSubscriptionResponse: 1 status Status
ChangeLogLevelRequest: 1 level ChangeLogLevelRequest.Level
ChangeLogLevelResponse: 1 remark string
"""

MESSAGING: Final = f"/{PACKAGE}.MessagingService/"
ADMIN: Final = f"/{PACKAGE}.Admin/"
