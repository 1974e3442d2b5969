import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
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
 * the endpoint; the words of a step are joined by slashes. */
public class Steps {
    private static final ClientServiceProvider API = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;
    private static final BlockingQueue<String> ASKED = new LinkedBlockingQueue<>();

    public static void main(String[] steps) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(steps[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        for (int i = 1; i < steps.length; i++) {
            System.out.println(step(steps[i].split("/")));
            System.out.flush();
        }
        System.exit(0);
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
                     boolean fails = how.equals("once") && view.getDeliveryAttempt() == 1;
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

    private static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] raw = new byte[body.remaining()];
        body.get(raw);
        return new String(raw, StandardCharsets.UTF_8);
    }
}
