// Runs Apache Kafka's command line tools in one JVM: a line of standard input is a class and its arguments, with tabs
// between them; what the tool prints is followed by a line with its exit status.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import org.apache.kafka.common.utils.internals.Exit;

public class KafkaTools {
    private static class Ended extends RuntimeException {}

    public static void main(String[] ignored) throws Exception {
        int[] status = new int[1];
        Exit.setExitProcedure((code, message) -> {
            status[0] = code;
            throw new Ended();
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            status[0] = 0;
            try {
                Class.forName(words[0]).getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            } catch (java.lang.reflect.InvocationTargetException error) {
                if (!(error.getCause() instanceof Ended)) {
                    throw error;
                }
            }
            System.out.println("exit " + status[0]);
        }
        System.exit(0);
    }
}
