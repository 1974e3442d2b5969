import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
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
 * Peer files|rocksdb WORK FOLDER N. Prints the figures as JSON.
 */
public final class Peer {
    static final int BATCH = 32, QUEUES = 8, THREADS = 16;
    static final double SECONDS = 3;
    static final String[] TAGS =
        {"created", "paid", "packed", "shipped", "delivered", "returned", "closed", "lost"};
    static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    final BrokerController broker;
    final MessageStore store;

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

    /** Puts, waits until all can be found, and gives how many a second. */
    double load(int count, int size, int topics, boolean batches, int from, List<Long> places)
        throws Exception {
        Random random = new Random(from);
        byte[] body = new byte[size];
        random.nextBytes(body);
        long begin = System.nanoTime();
        int done = 0;
        while (done < count && since(begin) < SECONDS) {
            int topic = random.nextInt(topics), queue = random.nextInt(QUEUES);
            PutMessageResult put = batches ? putBatch(topic, queue, body, from + done)
                : put(topic, queue, body, from + done);
            if (places != null)
                places.add(put.getAppendMessageResult().getWroteOffset());
            done += batches ? BATCH : 1;
        }
        while (store.dispatchBehindBytes() > 0)
            Thread.sleep(1);
        return done / since(begin);
    }

    static double since(long begin) {
        return (System.nanoTime() - begin) / 1e9;
    }

    /** As `_timed` of work.py: the first fifth of the calls does not count; -1 ends them. */
    static double timed(IntSupplier call) {
        long begin = System.nanoTime();
        List<double[]> done = new ArrayList<>();
        double total = 0;
        done.add(new double[] {0, 0});
        for (int count; since(begin) < SECONDS && (count = call.getAsInt()) >= 0;) {
            total += count;
            done.add(new double[] {since(begin), total});
        }
        double[] first = done.get(done.size() / 5), last = done.get(done.size() - 1);
        return (last[1] - first[1]) / Math.max(last[0] - first[0], 1e-9);
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

    double pull() {
        int[] queue = {0};
        long[] offset = {0};
        return timed(() -> {
            while (queue[0] < QUEUES) {
                GetMessageResult found =
                    store.getMessage("group", name(0), queue[0], offset[0], BATCH, null);
                int count = found == null ? 0 : read(found.getMessageBufferList());
                if (found != null) {
                    offset[0] = found.getNextBeginOffset();
                    found.release();
                }
                if (count > 0)
                    return count;
                queue[0]++;
                offset[0] = 0;
            }
            return -1;
        });
    }

    double get(List<Long> places, int count) {
        Random random = new Random(2);
        int[] left = {count};
        return timed(() -> {
            if (left[0]-- <= 0)
                return -1;
            SelectMappedBufferResult found =
                store.selectOneMessageByOffset(places.get(random.nextInt(places.size())));
            int read = read(List.of(found.getByteBuffer()));
            found.release();
            return read;
        });
    }

    double query(int messages, int count) {
        Random random = new Random(2);
        int[] left = {count};
        return timed(() -> {
            if (left[0]-- <= 0)
                return -1;
            QueryMessageResult found = store.queryMessage(
                name(0), "order-" + random.nextInt(messages), 64, 0, Long.MAX_VALUE);
            int read = read(found.getMessageBufferList());
            found.release();
            return read;
        });
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

    double together(Callable<Integer> work) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        List<Callable<Integer>> works = new ArrayList<>();
        for (int i = 0; i < THREADS; i++)
            works.add(work);
        long begin = System.nanoTime();
        int total = 0;
        for (Future<Integer> done : pool.invokeAll(works))
            total += done.get();
        double seconds = since(begin);
        pool.shutdown();
        return total / seconds;
    }

    /* -- the works -- */

    static double resident() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status")))
            if (line.startsWith("RssAnon:"))
                return Long.parseLong(line.split("\\s+")[1]) * 1024 / 1e6;
        return 0;
    }

    static double onDisk(Path folder) throws Exception {
        Process du = new ProcessBuilder("du", "-s", "-B1", folder.toString()).start();
        String said = new String(du.getInputStream().readAllBytes());
        return Double.parseDouble(said.split("\\s+")[0]);
    }

    static String work(String kind, String work, Path folder, int count) throws Exception {
        Peer peer = new Peer(kind, folder, work.equals("put_sync"));
        boolean many = work.startsWith("topics_");
        int topics = many ? Integer.parseInt(work.substring(7)) : work.startsWith("put") ? 8 : 1;
        peer.create(topics);
        if (many) {
            double rate = peer.load(count, 128, topics, false, 0, null);
            return String.format("{\"rate\": %f, \"memory\": %f, \"disk\": %f}", rate, resident(),
                onDisk(folder) / count);
        }
        List<Long> places = new ArrayList<>();
        if (!work.startsWith("put")) {
            int loaded = work.equals("pop_one") || work.equals("pop_threads") ? count / 5 : count;
            peer.load(loaded, 128, 1, !work.equals("get"), 0, places);
        }
        return String.format("{\"rate\": %f}", peer.rate(work, count, places));
    }

    double rate(String work, int count, List<Long> places) throws Exception {
        switch (work) {
            case "put_batch":
            case "put_batch_1k":
            case "put":
                int size = work.equals("put_batch_1k") ? 1024 : 128;
                load(count / 5, size, 8, !work.equals("put"), 0, null);
                return load(count, size, 8, !work.equals("put"), count / 5, null);
            case "put_sync":
                int each = Math.max(1, count / 20 / THREADS);
                return together(() -> {
                    byte[] body = new byte[128];
                    for (int i = 0; i < each; i++)
                        put(i % 8, i / 8 % QUEUES, body, i);
                    return each;
                });
            case "pull":
                return pull();
            case "get":
                return get(places, Math.max(5, count / 5));
            case "query":
                return query(count, Math.max(5, count / 10));
            case "pop_batch":
            case "pop_one":
                int[] turn = {0};
                return timed(() -> pop(work.equals("pop_one") ? 1 : BATCH, turn[0]++));
            case "pop_threads":
                int share = Math.max(1, count / 5 / THREADS);
                return together(() -> {
                    int done = 0;
                    for (int turn2 = 0; turn2 < share; turn2++)
                        done += Math.max(0, pop(1, turn2 + (int) Thread.currentThread().getId()));
                    return done;
                });
            default:
                throw new IllegalArgumentException(work);
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 4)
            throw new IllegalArgumentException(Arrays.toString(arguments));
        int code = 1;
        try {
            System.out.println(work(
                arguments[0], arguments[1], Path.of(arguments[2]), Integer.parseInt(arguments[3])));
            code = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        // Threads of the broker have nothing to finish.
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }
}
