// SPDX-License-Identifier: Apache-2.0
//
// Deletes the records of a partition before an offset, as retention does.
// Usage: java -cp 'JARS/*' DeleteRecords.java BOOTSTRAP TOPIC PARTITION OFFSET

import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.TopicPartition;

public class DeleteRecords {
    public static void main(String[] args) throws Exception {
        var partition = new TopicPartition(args[1], Integer.parseInt(args[2]));
        var before = RecordsToDelete.beforeOffset(Long.parseLong(args[3]));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            admin.deleteRecords(Map.of(partition, before)).all().get();
        }
    }
}
