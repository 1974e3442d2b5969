import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntSupplier;
import org.apache.rocketmq.broker.processor.EndTransactionProcessor;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * The works of messages in time: its timer store puts, delivers and deletes delayed messages, and
 * the broker's transaction service and its processor prepare and commit.
 */
final class TimedWorks {
    static final long DAY_MS = 86_400_000L;
    /** A delayed message that is not deleted, delivered or noted for so long never will be. */
    static final double STUCK_S = 60;

    final Peer peer;
    final TimerMessageStore timers;
    final EndTransactionProcessor ending;
    final Random random = new Random(0);
    final byte[] body = new byte[128];
    int number;

    TimedWorks(Peer peer) {
        this.peer = peer;
        random.nextBytes(body);
        timers = peer.broker.getTimerMessageStore();
        timers.start();
        timers.setShouldRunningDequeue(true);
        ending = new EndTransactionProcessor(peer.broker);
    }

    /** A message that waits in the timer store: its unique id. */
    String putDelayed(long due) {
        Message made = Peer.message(Peer.name(0), body, number++);
        MessageAccessor.putProperty(
            made, MessageConst.PROPERTY_TIMER_DELIVER_MS, String.valueOf(due));
        Peer.checked(peer.store.putMessage(inner(made)));
        return MessageClientIDSetter.getUniqID(made);
    }

    /** As the broker recalls a message: one more, that deletes it when both are due. */
    void delete(String id, long due) {
        Message made = new Message(Peer.name(0), "0".getBytes(StandardCharsets.UTF_8));
        MessageAccessor.putProperty(
            made, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY,
            TimerMessageStore.buildDeleteKey(Peer.name(0), id, true));
        MessageAccessor.putProperty(made, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, id);
        MessageAccessor.putProperty(
            made, MessageConst.PROPERTY_TIMER_DELIVER_MS, String.valueOf(due));
        Peer.checked(peer.store.putMessage(inner(made)));
    }

    MessageExtBrokerInner inner(Message made) {
        MessageExtBrokerInner inner = new MessageExtBrokerInner();
        inner.setTopic(made.getTopic());
        inner.setBody(made.getBody());
        inner.setQueueId(random.nextInt(Peer.QUEUES));
        inner.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(made.getTags()));
        MessageAccessor.setProperties(inner, made.getProperties());
        inner.setPropertiesString(MessageDecoder.messageProperties2String(made.getProperties()));
        inner.setBornTimestamp(System.currentTimeMillis());
        inner.setBornHost(Peer.HOST);
        inner.setStoreHost(Peer.HOST);
        return inner;
    }

    /** Until all that waits is in the timer's wheel and log. */
    void settle() {
        peer.settle();
        long begin = System.nanoTime();
        for (; timers.getEnqueueBehindMessages() > 0; LockSupport.parkNanos(20_000))
            if (Peer.since(begin) > STUCK_S)
                throw new IllegalStateException("the timer store does not take its messages");
    }

    double put() throws Exception {
        long due = System.currentTimeMillis() + DAY_MS;
        return Peer.measured(Peer.calling(() -> {
            putDelayed(due);
            return 1;
        }), this::settle);
    }

    long delivered() throws Exception {
        long found = 0;
        for (int queue = 0; queue < Peer.QUEUES; queue++)
            found += peer.store.getMaxOffsetInQueue(Peer.name(0), queue);
        return found;
    }

    double deliver(int count) throws Exception {
        return Peer.measured(seconds -> {
            long due = (System.currentTimeMillis() / 1000 + 5) * 1000, before = delivered();
            long begin = System.nanoTime();
            int put = 0;
            for (; put < count && Peer.since(begin) < Peer.LOAD_S; put++)
                putDelayed(due);
            settle();
            if (System.currentTimeMillis() > due - 1000 || delivered() != before)
                throw new IllegalStateException("messages were due before all of them were put");
            while (delivered() == before)
                rest(begin);
            long first = System.nanoTime();
            while (delivered() < before + put)
                rest(begin);
            return new double[] {put, Peer.since(first)};
        }, () -> { });
    }

    static void rest(long begin) {
        if (Peer.since(begin) > STUCK_S)
            throw new IllegalStateException("messages are not delivered");
        LockSupport.parkNanos(500_000);
    }

    double cancel(int count) throws Exception {
        long due = System.currentTimeMillis() + DAY_MS;
        return Peer.measured(seconds -> {
            List<String> ids = new ArrayList<>();
            for (long begin = System.nanoTime();
                 ids.size() < count && Peer.since(begin) < Peer.LOAD_S;)
                ids.add(putDelayed(due));
            settle();
            int[] next = {0};
            IntSupplier one = () -> {
                if (next[0] == ids.size())
                    return -1;
                delete(ids.get(next[0]++), due);
                return 1;
            };
            return Peer.calling(one).take(seconds);
        }, this::settle);
    }

    double transaction() throws Exception {
        return Peer.measured(Peer.calling(this::prepareAndCommit), peer::settle);
    }

    int prepareAndCommit() {
        Message made = Peer.message(Peer.name(random.nextInt(8)), body, number++);
        MessageAccessor.putProperty(made, MessageConst.PROPERTY_TRANSACTION_PREPARED, "true");
        MessageAccessor.putProperty(made, MessageConst.PROPERTY_PRODUCER_GROUP, "bench");
        MessageExtBrokerInner inner = inner(made);
        inner.setSysFlag(MessageSysFlag.TRANSACTION_PREPARED_TYPE);
        PutMessageResult put = Peer.checked(
            peer.broker.getTransactionalMessageService().prepareMessage(inner));
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setTopic(made.getTopic());
        header.setProducerGroup("bench");
        header.setTranStateTableOffset(put.getAppendMessageResult().getLogicsOffset());
        header.setCommitLogOffset(put.getAppendMessageResult().getWroteOffset());
        header.setCommitOrRollback(MessageSysFlag.TRANSACTION_COMMIT_TYPE);
        header.setMsgId(MessageClientIDSetter.getUniqID(made));
        header.setTransactionId(MessageClientIDSetter.getUniqID(made));
        RemotingCommand request =
            RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        request.makeCustomHeaderToNet();
        try {
            RemotingCommand answer = ending.processRequest(null, request);
            if (answer.getCode() != ResponseCode.SUCCESS)
                throw new IllegalStateException(answer.getCode() + " " + answer.getRemark());
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
        return 1;
    }

    interface Work {
        double rate() throws Exception;
    }

    /** By their names in work.py. */
    Map<String, Work> works(int count) {
        return Map.of(
            "put_delayed", this::put, "deliver", () -> deliver(count),
            "cancel", () -> cancel(count), "transaction", this::transaction);
    }
}
