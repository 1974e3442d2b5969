import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Takes orders, and puts them where a Python program finds them: TakeOrders HOST:PORT ORDER... */
public class TakeOrders {
    public static void main(String[] words) throws Exception {
        ClientServiceProvider api = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false).build();
        try (Producer producer =
                 api.newProducerBuilder().setClientConfiguration(configuration).setTopics("orders").build()) {
            for (int i = 1; i < words.length; i++) {
                Message order = api.newMessageBuilder().setTopic("orders").setTag("paid").setKeys(words[i])
                    .addProperty("region", "eu").setBody("shoes".getBytes(StandardCharsets.UTF_8)).build();
                System.out.println("took " + words[i] + " as " + producer.send(order).getMessageId());
            }
        }
        System.exit(0);
    }
}
