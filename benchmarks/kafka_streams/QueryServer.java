import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.Executors;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application with a table in a persistent store (RocksDB, the default settings), which is asked over HTTP for one
 * key a request: an interactive query as Kafka's documentation shows it.  The JDK's server with 16 threads answers.
 *
 * <p>Arguments: broker, topic, folder of the state, port, last key.  A value is three longs, big-endian.  "READY" is printed when the
 * last key is in the store.
 */
public final class QueryServer {
    private static final String STORE = "page_views";
    private static final int THREADS = 16;

    record PageViews(long hits, long bytes, long visitors) {}

    private static final Serde<PageViews> ROWS = Serdes.serdeFrom(
            (topic, row) -> row == null
                    ? null
                    : ByteBuffer.allocate(24).putLong(row.hits()).putLong(row.bytes()).putLong(row.visitors()).array(),
            (topic, data) -> {
                if (data == null) return null;
                ByteBuffer from = ByteBuffer.wrap(data);
                return new PageViews(from.getLong(), from.getLong(), from.getLong());
            });

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "page-views");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.table(
                arguments[1],
                Consumed.with(Serdes.String(), ROWS),
                Materialized.<String, PageViews>as(Stores.persistentKeyValueStore(STORE))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(ROWS));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        while (streams.state() != KafkaStreams.State.RUNNING) Thread.sleep(20);
        ReadOnlyKeyValueStore<String, PageViews> store = streams.store(
                StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.<String, PageViews>keyValueStore()));
        while (store.get(arguments[4]) == null) Thread.sleep(20);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[3])), 2048);
        server.setExecutor(Executors.newFixedThreadPool(THREADS));
        server.createContext("/tables/page_views/rows", exchange -> answer(exchange, store));
        server.start();
        System.out.println("READY");
    }

    private static void answer(HttpExchange exchange, ReadOnlyKeyValueStore<String, PageViews> store) throws IOException {
        String query = exchange.getRequestURI().getRawQuery();
        String page = URLDecoder.decode(query.substring(query.indexOf('=') + 1), StandardCharsets.UTF_8);
        PageViews row = store.get(page);
        byte[] body = (row == null ? "null" : json(page, row)).getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(200, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    private static String json(String page, PageViews row) {
        StringBuilder out = new StringBuilder(64 + page.length()).append("{\"page\":\"");
        for (int i = 0; i < page.length(); i++) {
            char c = page.charAt(i);
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        out.append("\",\"hits\":").append(row.hits()).append(",\"bytes\":").append(row.bytes());
        return out.append(",\"visitors\":").append(row.visitors()).append('}').toString();
    }
}
