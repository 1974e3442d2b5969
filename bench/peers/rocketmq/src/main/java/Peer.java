import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.StringJoiner;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntFunction;
import java.util.function.IntSupplier;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.pop.PopConsumerContext;
import org.apache.rocketmq.broker.pop.PopConsumerRecord;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * The works of bench/peers/work.py with RocketMQ's store, in its broker but without its network:
 * Peer files|memory|rocksdb WORK FOLDER N. "memory" is the file store whose broker has locks of pop
 * in memory. Prints the figures as JSON.
 */
public final class Peer {
    static final int BATCH = 32, QUEUES = 8, THREADS = 16;
    static final double WARM_S = 3.0, SECONDS = 2.0, LOAD_S = 1.0;
    /** Dispatching that makes no progress for so long has failed. */
    static final double STUCK_S = 10;
    static final String[] TAGS =
        {"created", "paid", "packed", "shipped", "delivered", "returned", "closed", "lost"};
    static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    final BrokerController broker;
    final MessageStore store;
    int number;

    Peer(String kind, Path folder, boolean sync) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder.toString());
        config.setStorePathCommitLog(folder.resolve("commitlog").toString());
        config.setStoreType(kind.equals("rocksdb") ? "defaultRocksDB" : "default");
        config.setFlushDiskType(sync ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        // The disk of the machine may be fuller than a broker's should be.
        config.setDiskMaxUsedSpaceRatio(95);
        config.setHaListenPort(freePort());
        BrokerConfig own = new BrokerConfig();
        own.setBrokerIP1("127.0.0.1");
        own.setPopConsumerKVServiceInit(true);
        own.setPopConsumerKVServiceEnable(true);
        own.setEnablePopBufferMerge(kind.equals("memory"));
        // Without network nothing measures how busy its threads are.
        own.setBrokerFastFailureEnable(false);
        NettyServerConfig net = new NettyServerConfig();
        net.setListenPort(freePort());
        broker = new BrokerController(own, net, new NettyClientConfig(), config);
        if (!broker.initialize())
            throw new IllegalStateException("the broker does not start");
        store = broker.getMessageStore();
        store.start();
        broker.getPopConsumerService().start();
    }

    static int freePort() throws Exception {
        try (ServerSocket free = new ServerSocket(0)) {
            return free.getLocalPort();
        }
    }

    void create(int topics) {
        List<TopicConfig> made = new ArrayList<>();
        for (int topic = 0; topic < topics; topic++)
            made.add(new TopicConfig(name(topic), QUEUES, QUEUES, 6));
        broker.getTopicConfigManager().updateTopicConfigList(made);
    }

    static String name(int topic) {
        return "topic-" + topic;
    }

    /* -- putting -- */

    static Message message(String topic, byte[] body, int number) {
        Message made = new Message(topic, TAGS[number % 8], "order-" + number, body);
        made.putUserProperty("region", "eu");
        MessageClientIDSetter.setUniqID(made);
        return made;
    }

    PutMessageResult put(int topic, int queue, byte[] body, int number) {
        MessageExtBrokerInner inner = new MessageExtBrokerInner();
        Message made = message(name(topic), body, number);
        inner.setTopic(made.getTopic());
        inner.setBody(body);
        inner.setQueueId(queue);
        inner.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(made.getTags()));
        inner.setPropertiesString(MessageDecoder.messageProperties2String(made.getProperties()));
        MessageAccessor.setProperties(inner, made.getProperties());
        inner.setBornTimestamp(System.currentTimeMillis());
        inner.setBornHost(HOST);
        inner.setStoreHost(HOST);
        return checked(store.putMessage(inner));
    }

    /** A batch has one topic and queue: RocketMQ has no other. */
    PutMessageResult putBatch(int topic, int queue, byte[] body, int number) {
        List<Message> batch = new ArrayList<>(BATCH);
        for (int i = 0; i < BATCH; i++)
            batch.add(message(name(topic), body, number + i));
        MessageExtBatch inner = new MessageExtBatch();
        inner.setTopic(name(topic));
        inner.setQueueId(queue);
        inner.setBody(MessageDecoder.encodeMessages(batch));
        MessageAccessor.setProperties(inner, new HashMap<>());
        inner.setBornTimestamp(System.currentTimeMillis());
        inner.setBornHost(HOST);
        inner.setStoreHost(HOST);
        return checked(store.putMessages(inner));
    }

    static PutMessageResult checked(PutMessageResult result) {
        if (!result.isOk())
            throw new IllegalStateException(String.valueOf(result.getPutMessageStatus()));
        return result;
    }

    /** Puts the next message, or batch, into a queue drawn at random. */
    IntSupplier putting(int size, int topics, boolean batches, List<Long> places) {
        Random random = new Random(0);
        byte[] body = new byte[size];
        random.nextBytes(body);
        int step = batches ? BATCH : 1;
        return () -> {
            int topic = random.nextInt(topics), queue = random.nextInt(QUEUES);
            PutMessageResult put =
                batches ? putBatch(topic, queue, body, number) : put(topic, queue, body, number);
            number += step;
            if (places != null)
                places.add(put.getAppendMessageResult().getWroteOffset());
            return step;
        };
    }

    /** Puts at most so many messages, until the time is over, all of which can be found then. */
    int load(IntSupplier put, int count, double seconds) {
        long begin = System.nanoTime();
        int done = 0;
        while (done < count && since(begin) < seconds)
            done += put.getAsInt();
        settle();
        return done;
    }

    void settle() {
        long behind = Long.MAX_VALUE, moved = System.nanoTime();
        for (long now; (now = store.dispatchBehindBytes()) > 0; LockSupport.parkNanos(20_000)) {
            if (now < behind)
                moved = System.nanoTime();
            else if (since(moved) > STUCK_S)
                throw new IllegalStateException(now + " bytes are not dispatched");
            behind = now;
        }
    }

    static double since(long begin) {
        return (System.nanoTime() - begin) / 1e9;
    }

    /** Works for at most so many seconds; how much it did, and in how many. */
    interface Turn {
        double[] take(double seconds) throws Exception;
    }

    /** As `measured` of work.py: the rate of a work that is warm; settling is on its clock. */
    static double measured(Turn turn, Runnable settle) throws Exception {
        double rate = 0;
        for (double seconds : new double[] {WARM_S, SECONDS}) {
            double total = 0, spent = 0;
            while (spent < seconds) {
                double[] taken = turn.take(seconds - spent);
                if (taken[0] <= 0)
                    throw new IllegalStateException("a work did nothing");
                total += taken[0];
                spent += taken[1];
            }
            long begin = System.nanoTime();
            settle.run();
            rate = total / (spent + since(begin));
        }
        return rate;
    }

    /** Calls until the time is over, or -1 ends them. */
    static Turn calling(IntSupplier call) {
        return seconds -> {
            long begin = System.nanoTime();
            double total = 0;
            for (int count; since(begin) < seconds && (count = call.getAsInt()) >= 0;)
                total += count;
            return new double[] {total, since(begin)};
        };
    }

    double putRate(IntSupplier put) throws Exception {
        return measured(calling(put), this::settle);
    }

    /* -- reading -- */

    static int read(List<ByteBuffer> buffers) {
        int count = 0;
        for (ByteBuffer buffer : buffers) {
            MessageExt found = MessageDecoder.decode(buffer);
            if (found.getBody() != null && found.getTags() != null && found.getKeys() != null
                && found.getUserProperty("region") != null)
                count++;
        }
        return count;
    }

    /** All queues, from the first message to the last, again and again. */
    IntSupplier pull() {
        int[] queue = {0};
        long[] offset = {0};
        return () -> {
            for (int empty = 0; empty <= QUEUES; empty++) {
                GetMessageResult found =
                    store.getMessage("group", name(0), queue[0], offset[0], BATCH, null);
                int count = found == null ? 0 : read(found.getMessageBufferList());
                if (found != null) {
                    offset[0] = found.getNextBeginOffset();
                    found.release();
                }
                if (count > 0)
                    return count;
                queue[0] = (queue[0] + 1) % QUEUES;
                offset[0] = 0;
            }
            return -1;
        };
    }

    IntSupplier get(List<Long> places) {
        Random random = new Random(2);
        return () -> {
            SelectMappedBufferResult found =
                store.selectOneMessageByOffset(places.get(random.nextInt(places.size())));
            int read = read(List.of(found.getByteBuffer()));
            found.release();
            return read;
        };
    }

    IntSupplier query(int messages) {
        Random random = new Random(2);
        return () -> {
            QueryMessageResult found = store.queryMessage(
                name(0), "order-" + random.nextInt(messages), 64, 0, Long.MAX_VALUE);
            int read = read(found.getMessageBufferList());
            found.release();
            return read;
        };
    }

    /* -- popping -- */

    int pop(int limit, int from) {
        for (int i = 0; i < QUEUES; i++) {
            long now = System.currentTimeMillis();
            PopConsumerContext found = broker.getPopConsumerService().popAsync("client", now, 30_000,
                "group", name(0), (from + i) % QUEUES, limit, false, null, 0, null).join();
            if (found == null || found.getGetMessageResultList() == null)
                continue;
            List<PopConsumerRecord> records = found.getPopConsumerRecordList();
            for (GetMessageResult result : found.getGetMessageResultList()) {
                read(result.getMessageBufferList());
                result.release();
            }
            List<Future<Boolean>> acks = new ArrayList<>();
            if (records != null)
                for (PopConsumerRecord r : records)
                    acks.add(broker.getPopConsumerService().ackAsync(r.getPopTime(),
                        r.getInvisibleTime(), r.getGroupId(), r.getTopicId(), r.getQueueId(),
                        r.getOffset()));
            try {
                for (Future<Boolean> ack : acks)
                    ack.get();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            if (!acks.isEmpty())
                return acks.size();
        }
        return -1;
    }

    /** The same in all threads until the time is over; a work gives how much it did. */
    static double[] together(ExecutorService pool, IntFunction<Integer> work) throws Exception {
        List<Callable<Integer>> works = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
            int thread = i;
            works.add(() -> work.apply(thread));
        }
        long begin = System.nanoTime();
        double total = 0;
        for (Future<Integer> done : pool.invokeAll(works))
            total += done.get();
        return new double[] {total, since(begin)};
    }

    double putSync() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        byte[] body = new byte[128];
        return measured(seconds -> {
            long begin = System.nanoTime();
            return together(pool, thread -> {
                int done = 0;
                for (; since(begin) < seconds; done++)
                    put(done % 8, done / 8 % QUEUES, body, thread * 1_000_000 + done);
                return done;
            });
        }, () -> { });
    }

    /** Messages are loaded off the clock whenever all are popped. */
    double pops(int limit, int count) throws Exception {
        IntSupplier put = putting(128, 1, true, null);
        int[] from = {0};
        return measured(seconds -> {
            load(put, count, LOAD_S);
            return calling(() -> pop(limit, from[0]++)).take(seconds);
        }, () -> { });
    }

    double popThreads(int count) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        IntSupplier put = putting(128, 1, true, null);
        return measured(seconds -> {
            int each = load(put, count, LOAD_S) / THREADS;
            long begin = System.nanoTime();
            return together(pool, thread -> {
                // Who finds the group locked by another thread has popped nothing, and tries again.
                int done = 0;
                for (int turn = thread; done < each && since(begin) < seconds; turn++)
                    done += Math.max(0, pop(1, turn));
                return done;
            });
        }, () -> { });
    }

    /* -- the works -- */

    /** The file of figures is open from the start: later there may be no more files to open. */
    static final RandomAccessFile STATUS = open("/proc/self/status");

    static RandomAccessFile open(String path) {
        try {
            return new RandomAccessFile(path, "r");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static double resident() throws Exception {
        STATUS.seek(0);
        for (String line; (line = STATUS.readLine()) != null;)
            if (line.startsWith("RssAnon:"))
                return Long.parseLong(line.split("\\s+")[1]) * 1024 / 1e6;
        throw new IllegalStateException("no RssAnon");
    }

    static double onDisk(Path folder) throws Exception {
        Process du = new ProcessBuilder("du", "-s", "-B1", folder.toString()).start();
        String said = new String(du.getInputStream().readAllBytes());
        return Double.parseDouble(said.split("\\s+")[0]);
    }

    /** Figures by row and name; those from before a failure are printed too. */
    static final Map<String, StringJoiner> ROWS = new LinkedHashMap<>();

    static void row(String name, String figure, double value) {
        ROWS.computeIfAbsent(name, n -> new StringJoiner(", ", "{", "}"))
            .add(String.format(Locale.ROOT, "\"%s\": %f", figure, value));
    }

    static String json() {
        StringJoiner rows = new StringJoiner(", ", "{", "}");
        ROWS.forEach((name, figures) -> rows.add("\"" + name + "\": " + figures));
        return rows.toString();
    }

    static void work(String kind, String work, Path folder, int count) throws Exception {
        Peer peer = new Peer(kind, folder, work.equals("put_sync"));
        boolean many = work.startsWith("topics_");
        boolean few = work.startsWith("put") || work.equals("transaction");
        int topics = many ? Integer.parseInt(work.substring(7)) : few ? 8 : 1;
        peer.create(topics);
        switch (work) {
            case "put_batch":
            case "put_batch_1k":
            case "put":
                int size = work.equals("put_batch_1k") ? 1024 : 128;
                row(work, "rate", peer.putRate(peer.putting(size, 8, !work.equals("put"), null)));
                break;
            case "put_columns":
                break; // It takes none.
            case "put_sync":
                row(work, "rate", peer.putSync());
                break;
            case "read":
                List<Long> places = new ArrayList<>();
                peer.load(peer.putting(128, 1, false, places), count, 5 * LOAD_S);
                row("pull", "rate", measured(calling(peer.pull()), () -> { }));
                row("get", "rate", measured(calling(peer.get(places)), () -> { }));
                row("query", "rate", measured(calling(peer.query(places.size())), () -> { }));
                break;
            case "pop_batch":
            case "pop_one":
                row(work, "rate", peer.pops(work.equals("pop_one") ? 1 : BATCH, count));
                break;
            case "pop_threads":
                row(work, "rate", peer.popThreads(count));
                break;
            case "put_delayed":
            case "deliver":
            case "cancel":
            case "transaction":
                row(work, "rate", new TimedWorks(peer).works(count).get(work).rate());
                break;
            default:
                if (!many)
                    throw new IllegalArgumentException(work);
                peer.topics(work, topics, count, folder);
        }
    }

    /** Memory and disk of the same messages, of which each queue has one; then rates. */
    void topics(String work, int topics, int count, Path folder) throws Exception {
        int queues = topics * QUEUES, more = Math.max(count / 4 - queues, 0);
        byte[] body = new byte[128];
        for (int queue = 0; queue < queues; queue++)
            put(queue / QUEUES, queue % QUEUES, body, number++);
        try {
            load(putting(128, topics, false, null), more, Double.MAX_VALUE);
        } finally {
            // The file store fails where it may not open the files of all queues; its memory is told.
            row(work, "memory", resident());
        }
        row(work, "disk", onDisk(folder) / (queues + more));
        if (topics < 5000)
            return;
        row(work, "rate", putRate(putting(128, topics, true, null)));
        row(work + "_single", "rate", putRate(putting(128, topics, false, null)));
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 4)
            throw new IllegalArgumentException(Arrays.toString(arguments));
        int code = 1;
        try {
            work(arguments[0], arguments[1], Path.of(arguments[2]), Integer.parseInt(arguments[3]));
            code = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.out.println(json());
        // Threads of the broker have nothing to finish.
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }
}
