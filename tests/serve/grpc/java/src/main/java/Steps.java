import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Does what its arguments say, one after the other, and prints a line for each. The first argument is
 * the endpoint; the words of a step are joined by slashes. The properties ssl, namespace, key and secret
 * are the client's settings. A step that the server refuses prints "refused" and the exception's name. */
public class Steps {
    private static final ClientServiceProvider API = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;
    private static final BlockingQueue<String> ASKED = new LinkedBlockingQueue<>();

    public static void main(String[] steps) throws Exception {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(steps[0])
            .enableSsl(Boolean.getBoolean("ssl")).setNamespace(System.getProperty("namespace", ""))
            .setRequestTimeout(Duration.ofSeconds(10));
        if (System.getProperty("key") != null) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(System.getProperty("key"), System.getProperty("secret")));
        }
        configuration = builder.build();
        for (int i = 1; i < steps.length; i++) {
            say(answer(steps[i].split("/")));
        }
        System.exit(0);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String answer(String[] words) throws Exception {
        try {
            return step(words);
        } catch (Exception e) {
            for (Throwable cause = e; cause != null; cause = cause.getCause()) {
                // A client whose settings are refused says no more than that its start was cancelled.
                if (cause instanceof ClientException || cause instanceof CancellationException) {
                    return "refused " + cause.getClass().getSimpleName();
                }
            }
            throw e;
        }
    }

    private static String step(String[] words) throws Exception {
        switch (words[0]) {
            case "send": return send(words[1], words[2], null, null);
            case "fifo": return send(words[1], words[3], words[2], null);
            case "delay": return send(words[1], words[2], null, Long.valueOf(words[3]));
            case "recall": return recall(words[1], words[2]);
            case "transaction": return transaction(words[1], words[2], words[3]);
            case "simple": return simple(words[1], words[2], words[3], Integer.parseInt(words[4]));
            case "sql": return sql(words[1], words[2], words[3], Integer.parseInt(words[4]));
            case "outlive": return outlive(words[1], words[2]);
            case "outlive-pushed": return outlivePushed(words[1], words[2]);
            case "push": return push(words[1], words[2], Integer.parseInt(words[3]), words[4]);
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static Message message(String topic, String body, String group, Long seconds) {
        MessageBuilder builder = API.newMessageBuilder().setTopic(topic).setTag("x").setKeys("k-" + body)
            .addProperty("region", "eu").setBody(body.getBytes(StandardCharsets.UTF_8));
        if (group != null) {
            builder.setMessageGroup(group);
        }
        if (seconds != null) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + 1000 * seconds);
        }
        return builder.build();
    }

    private static String send(String topic, String body, String group, Long seconds) throws Exception {
        try (Producer producer =
                 API.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build()) {
            return producer.send(message(topic, body, group, seconds)).getMessageId().toString();
        }
    }

    private static String recall(String topic, String body) throws Exception {
        try (Producer producer =
                 API.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build()) {
            SendReceipt sent = producer.send(message(topic, body, null, 60L));
            boolean same = producer.recallMessage(topic, sent.getRecallHandle()).getMessageId().equals(sent.getMessageId());
            return "recalled " + same;
        }
    }

    private static String transaction(String topic, String body, String how) throws Exception {
        try (Producer producer = API.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
                 .setTransactionChecker(asked -> {
                     ASKED.add(text(asked));
                     return TransactionResolution.COMMIT;
                 }).build()) {
            Transaction begun = producer.beginTransaction();
            producer.send(message(topic, body, null, null), begun);
            if (how.equals("commit")) {
                begun.commit();
            } else if (how.equals("rollback")) {
                begun.rollback();
            } else {
                return "asked about " + ASKED.poll(60, TimeUnit.SECONDS);
            }
            return how;
        }
    }

    private static String simple(String group, String topic, String tag, int count) throws Exception {
        return receive(group, topic, new FilterExpression(tag, FilterExpressionType.TAG), count);
    }

    private static String sql(String group, String topic, String text, int count) throws Exception {
        return receive(group, topic, new FilterExpression(text, FilterExpressionType.SQL92), count);
    }

    private static String receive(String group, String topic, FilterExpression filter, int count) throws Exception {
        List<String> found = new ArrayList<>();
        try (SimpleConsumer consumer = API.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                 .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
                 .setSubscriptionExpressions(Collections.singletonMap(topic, filter)).build()) {
            for (int tries = 0; found.size() < count && tries < 10; tries++) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(15))) {
                    found.add(text(view) + " " + view.getTag().orElse("-") + " " + view.getDeliveryAttempt());
                    consumer.ack(view);
                }
            }
        }
        Collections.sort(found);
        return found.toString();
    }

    private static String push(String group, String topic, int count, String how) throws Exception {
        BlockingQueue<String> found = new LinkedBlockingQueue<>();
        List<String> pushed = new ArrayList<>();
        try (PushConsumer consumer = API.newPushConsumerBuilder().setClientConfiguration(configuration)
                 .setConsumerGroup(group)
                 .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression()))
                 .setMessageListener(view -> {
                     found.add(text(view));
                     boolean fails = how.equals("never") || how.equals("once") && view.getDeliveryAttempt() == 1;
                     return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                 }).build()) {
            while (pushed.size() < count) {
                pushed.add(found.poll(60, TimeUnit.SECONDS));
            }
            // The acks of the last ones are on their way.
            Thread.sleep(500);
        }
        return pushed.toString();
    }

    /** Sends and receives, waits for a line of the input while the server is restarted, and goes on: acks what it
     * got before, sends, and receives. */
    private static String outlive(String group, String topic) throws Exception {
        try (Producer producer =
                 API.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
             SimpleConsumer consumer = API.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                 .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
                 .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression())).build()) {
            producer.send(message(topic, "before", null, null));
            MessageView before = one(consumer);
            say("received " + text(before));
            System.in.read();
            consumer.ack(before);
            producer.send(message(topic, "after", null, null));
            MessageView after = one(consumer);
            consumer.ack(after);
            // A client that is closed while it renews its streams waits for ever.
            Thread.sleep(3000);
            return "received " + text(after);
        }
    }

    private static MessageView one(SimpleConsumer consumer) throws Exception {
        for (int tries = 0; tries < 10; tries++) {
            for (MessageView view : consumer.receive(1, Duration.ofSeconds(60))) {
                return view;
            }
        }
        throw new IllegalStateException("nothing came");
    }

    /** Gets a message, waits for a line of the input while the server is restarted, and gets another. */
    private static String outlivePushed(String group, String topic) throws Exception {
        BlockingQueue<String> found = new LinkedBlockingQueue<>();
        try (PushConsumer consumer = API.newPushConsumerBuilder().setClientConfiguration(configuration)
                 .setConsumerGroup(group)
                 .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression()))
                 .setMessageListener(view -> {
                     found.add(text(view));
                     return ConsumeResult.SUCCESS;
                 }).build()) {
            say("pushed " + found.poll(60, TimeUnit.SECONDS));
            System.in.read();
            String after = found.poll(60, TimeUnit.SECONDS);
            // Its ack is on its way, and the client's streams are.
            Thread.sleep(3000);
            return "pushed " + after;
        }
    }

    private static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] raw = new byte[body.remaining()];
        body.get(raw);
        return new String(raw, StandardCharsets.UTF_8);
    }
}
