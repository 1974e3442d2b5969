import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;

/** Tells customers what the Python program shipped, until COUNT are told: TellCustomers HOST:PORT COUNT */
public class TellCustomers {
    public static void main(String[] words) throws Exception {
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false).build();
        CountDownLatch left = new CountDownLatch(Integer.parseInt(words[1]));
        try (PushConsumer consumer = ClientServiceProvider.loadService().newPushConsumerBuilder()
                 .setClientConfiguration(configuration).setConsumerGroup("telling")
                 .setSubscriptionExpressions(Collections.singletonMap("shipped", new FilterExpression("*")))
                 .setMessageListener(shipped -> {
                     String order = shipped.getKeys().iterator().next();
                     System.out.println(order + ": " + StandardCharsets.UTF_8.decode(shipped.getBody()));
                     left.countDown();
                     return ConsumeResult.SUCCESS;
                 }).build()) {
            left.await();
            Thread.sleep(500); // the acks of the last ones are on their way
        }
        System.exit(0);
    }
}
