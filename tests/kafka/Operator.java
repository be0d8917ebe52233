// SPDX-License-Identifier: Apache-2.0
//
// Obeys lines of its standard input, each answered by "ok" or "error TEXT", until that ends:
//
//   allow USER topic|group|cluster NAME OPERATION...    (from any host; NAME is literal, a prefix and *, or * for all)
//   deny USER topic|group|cluster NAME                  (what was allowed is no more)
//   move TOPIC PARTITION BROKER[,BROKER...]             (replicas; the first is to lead, if it can)
//   lead TOPIC PARTITION                                (the first of the replicas)
//
// Usage: java -cp 'JARS/*' Operator.java BOOTSTRAP

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.utils.SecurityUtils;

public class Operator {
    static ResourceType type(String word) {
        return ResourceType.fromString(word.toUpperCase(Locale.ROOT));
    }

    static void allow(Admin admin, String[] words) throws Exception {
        boolean begins = words[3].length() > 1 && words[3].endsWith("*");
        var what = begins
            ? new ResourcePattern(type(words[2]), words[3].substring(0, words[3].length() - 1), PatternType.PREFIXED)
            : new ResourcePattern(type(words[2]), words[3], PatternType.LITERAL);
        List<AclBinding> bindings = new ArrayList<>();
        for (String operation : Arrays.copyOfRange(words, 4, words.length)) {
            bindings.add(new AclBinding(what, new AccessControlEntry(
                "User:" + words[1], "*", SecurityUtils.operation(operation), AclPermissionType.ALLOW)));
        }
        admin.createAcls(bindings).all().get();
    }

    static void deny(Admin admin, String[] words) throws Exception {
        var what = new ResourcePatternFilter(type(words[2]), words[3], PatternType.LITERAL);
        var who = new AccessControlEntryFilter("User:" + words[1], null, AclOperation.ANY, AclPermissionType.ANY);
        admin.deleteAcls(List.of(new AclBindingFilter(what, who))).all().get();
    }

    static void move(Admin admin, String[] words) throws Exception {
        var partition = new TopicPartition(words[1], Integer.parseInt(words[2]));
        List<Integer> replicas = Arrays.stream(words[3].split(",")).map(Integer::valueOf).toList();
        admin.alterPartitionReassignments(
            Map.of(partition, Optional.of(new NewPartitionReassignment(replicas)))).all().get();
        while (admin.listPartitionReassignments(Set.of(partition)).reassignments().get().containsKey(partition)) {
            Thread.sleep(50);
        }
        lead(admin, partition);
    }

    static void lead(Admin admin, TopicPartition partition) throws Exception {
        var failure = admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get().get(partition);
        if (failure.isPresent() && !(failure.get() instanceof ElectionNotNeededException)) {
            throw new Exception(failure.get());
        }
    }

    public static void main(String[] args) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0])); Scanner lines = new Scanner(System.in)) {
            while (lines.hasNextLine()) {
                String[] words = lines.nextLine().split(" ");
                try {
                    switch (words[0]) {
                        case "allow" -> allow(admin, words);
                        case "deny" -> deny(admin, words);
                        case "move" -> move(admin, words);
                        case "lead" -> lead(admin, new TopicPartition(words[1], Integer.parseInt(words[2])));
                        default -> throw new Exception("there is no command " + words[0]);
                    }
                    System.out.println("ok");
                } catch (Exception error) {
                    System.out.println(("error " + error).replace('\n', ' '));
                }
            }
        }
    }
}
